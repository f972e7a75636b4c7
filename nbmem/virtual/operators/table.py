"""The table of all operator records, with one record per operator."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Launch, MemoryPlan, Operator
from nbmem.virtual.operators import (
    attention,
    convolution,
    copies,
    factories,
    index,
    linalg,
    norm,
    packing,
    quantized,
    recurrent,
    reduce,
    sparse,
    storage,
)
from nbmem.virtual.operators.communication import collectives, functional_collectives
from nbmem.virtual.operators.elementwise import element_order, masks, pointwise, random
from nbmem.virtual.operators.elementwise.value_signs import SIGN_RULES
from nbmem.virtual.operators.fft import fft
from nbmem.virtual.operators.layers import (
    detection,
    embedding,
    interpolation,
    loss,
    pooling,
    softmax,
)
from nbmem.virtual.operators.products import blas, distance, scaled, trilinear
from nbmem.virtual.operators.sorting import histogram, scan, segments, sort, unique
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import Results, as_meta

if TYPE_CHECKING:
    from nbmem.virtual.tensors.host.lazy_tensors import HostRule
    from nbmem.virtual.tensors.value_rules import ValueRule

FAMILIES = (
    element_order, attention, blas, collectives, convolution, copies, histogram, detection,
    distance, embedding, factories, fft, functional_collectives, index, interpolation, linalg, loss,
    masks, norm, packing, pointwise, pooling, quantized, random, recurrent, reduce, scaled, scan,
    segments, softmax, sort, sparse, storage, trilinear, unique,
)  # fmt: skip
OPERATORS: tuple[Operator, ...] = tuple(o for family in FAMILIES for o in family.OPERATORS)
PLAIN = Operator(())
"""The record of other operators: torch's shape rule, and its results in order."""
_BY_NAME = {name: operator for operator in OPERATORS for name in operator.names}
_foreign: dict[str, Operator] = {}
"""Of other libraries, by the rules of their packages; while a card is active."""
_learning = threading.RLock()
"""Held while records are added: another thread may call an operator during a library's import."""


class _Records(dict[Any, Operator]):
    """A cache of records by torch operator.

    Records are found by name once, so that libraries need not be loaded first.
    """

    def __missing__(self, func: Any) -> Operator:
        name, overload = func._schema.name.removeprefix("aten::"), func._schema.overload_name
        whole = f"{name}.{overload}" if overload else name
        with _learning:
            own = _BY_NAME.get(whole) or _foreign.get(whole)
            found = self[func] = own or _BY_NAME.get(f"{name}.*", PLAIN)
            return found


class _ValueRules(dict[Any, "ValueRule"]):
    """A cache of value rules by torch operator.

    Each is its record's rule, with the sign and seed of its unknown floats.
    """

    def __missing__(self, func: Any) -> ValueRule:
        sign_rule = SIGN_RULES.get(func._schema.name.removeprefix("aten::"))
        rule = _records[func].values
        found = self[func] = rule if sign_rule is None else replace(rule, sign_rule=sign_rule)
        return found


_records = _Records()
record_of = _records.__getitem__
"""The record of one of torch's operators; `PLAIN` where it has none."""
_value_rules = _ValueRules()
values_of = _value_rules.__getitem__
"""What one of torch's operators does to values."""


def set_foreign_operators(operators: Iterable[Operator]) -> None:
    """Replace all records of other libraries' operators by these."""
    with _learning:
        _foreign.clear()
        _foreign.update((name, operator) for operator in operators for name in operator.names)
        _value_rules.clear()
        for func in [func for func in _records if not func._schema.name.startswith("aten::")]:
            del _records[func]


def host_of(func: Any) -> HostRule:
    """Return an operator's rule for unwritten large tensors on the CPU."""
    return _records[func].host


def plan_of(call: OperatorCall, results: Results) -> MemoryPlan | None:
    """Return the steps of a call; None for only its results in order."""
    rule = record_of(call.func).memory
    if rule is None:
        return None
    # Rules read geometry only, so they get tensors that they can do anything with.
    args, kwargs = call.map(as_meta)
    gpu = call.gpu
    launch = Launch(
        OperatorCall(call.func, args, kwargs), results.fresh, gpu.card, gpu.dnn, gpu.rules
    )
    return MemoryPlan(tuple(rule(launch)))


def kernels() -> Iterator[str]:
    """Yield operators with a CUDA kernel that are composite elsewhere."""
    for operator in OPERATORS:
        yield from operator.names if operator.is_kernel else ()


def has_cuda_kernel(name: str) -> bool:
    """Return True if this build of torch has a CUDA kernel of that name."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", torch._C.DispatchKey.CUDA)
    )


def composites() -> Iterator[tuple[Any, Any]]:
    """Yield this release's composite operators and their form on CUDA."""
    for operator in OPERATORS:
        for name in operator.names if operator.composite is not None else ():
            packet, _, overload = name.partition(".")
            found = getattr(torch.ops.aten, packet, None)
            if found is not None and hasattr(found, overload or "default"):
                yield getattr(found, overload or "default"), operator.composite
