"""Operators that make, combine and negate masks.

Their value rules return what a mask implies where no values are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model import autograd_differences
from nbmem.virtual.operator_model.operator import Operator, drop, out, temporary
from nbmem.virtual.tensors import assumptions
from nbmem.virtual.tensors.value_bounds import (
    of_complement,
    smallest_count,
    source_count,
    total_count,
)
from nbmem.virtual.tensors.value_rules import (
    ValueRule,
    always,
    compared,
    inverted_health,
    same_health,
)

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Handler, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def is_infinite(launch: Launch) -> Iterator[Step]:
    """Plan `isinf`: absolute values are compared with infinity.

    Of complex numbers each part is compared: real first, then imaginary.
    """
    tensor = launch["self"]
    floats = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    size = tensor.numel() * tensor.element_size() // (1 + tensor.dtype.is_complex)
    if floats:
        yield temporary("absolute", size)
    yield out()
    yield drop("absolute")
    if tensor.dtype.is_complex:
        yield temporary("imaginary", size)
        yield temporary("is infinite", tensor.numel())
        yield from (drop("imaginary"), drop("is infinite"))


def _joins(in_place: Any) -> Handler:
    """Return an autograd handler that combines masks in the first one.

    Where torch's release does not do so in the formula of `clamp`, the handler does nothing.
    """
    overwrite = autograd_differences.overwrite_in_place(in_place, _JOINING)

    def join(executor: Executor, call: OperatorCall) -> Any:
        aside = not call.gpu.rules.clamp_masks_in_place
        if aside and executor.nodes.name() == "ClampBackward0":
            return NotImplemented
        return overwrite(executor, call)

    return join


_JOINING = (
    *("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"),
    *("ClampBackward0", "ClampBackward1"),
)
_AND = ValueRule(health=same_health, absorbs=False, most=smallest_count, assumes=assumptions.both)
_OR = ValueRule(health=same_health, absorbs=True, most=total_count, assumes=assumptions.either)
OPERATORS = (
    Operator(("logical_and",), autograd=_joins(aten.logical_and_.default), values=_AND),
    Operator(("bitwise_and.Tensor",), values=_AND),
    Operator(("logical_or",), autograd=_joins(aten.logical_or_.default), values=_OR),
    Operator(("bitwise_or.Tensor",), values=_OR),
    Operator(
        ("logical_or_", "bitwise_or_.Tensor"),
        values=ValueRule(most=total_count, assumes=assumptions.either),
    ),
    Operator(("logical_and_", "bitwise_and_.Tensor"), values=ValueRule(assumes=assumptions.both)),
    Operator(
        ("logical_not", "bitwise_not"),
        values=ValueRule(health=inverted_health, assumes=assumptions.inverted),
    ),
    Operator(
        ("rsub.Scalar",), values=ValueRule(below=of_complement, assumes=assumptions.subtracted)
    ),
    Operator(("isnan",), values=ValueRule(health=always(False))),
    Operator(
        ("isinf",),
        memory=is_infinite,
        values=ValueRule(health=always(False)),
        source="aten/src/ATen/native/TensorCompare.cpp: isinf",
    ),
    Operator(("isclose",), values=ValueRule(health=always(True))),
    Operator(
        ("ne.Scalar", "gt.Scalar"),
        values=ValueRule(health=compared, most=source_count, assumes=assumptions.compared),
    ),
    Operator(
        (
            *("eq.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar", "eq.Tensor", "ne.Tensor"),
            *("gt.Tensor", "ge.Tensor", "lt.Tensor", "le.Tensor"),
        ),
        values=ValueRule(health=compared, assumes=assumptions.compared),
    ),
)
