"""Tensor factories: empty, filled, or with another tensor's geometry."""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.devices import CPU, META
from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.operators.copies import is_on
from nbmem.virtual.tensors.host.lazy_tensors import HostRule
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import infer
from nbmem.virtual.tensors.storages import dataless_result
from nbmem.virtual.tensors.value_bounds import drawn, fixed
from nbmem.virtual.tensors.value_rules import ValueRule

aten = torch.ops.aten


def create_like(executor: Executor, call: OperatorCall) -> Any:
    """Create a tensor with another's geometry on a different device.

    This is `empty_like(cpu_tensor, device="cuda")` and its family. Returns NotImplemented if
    both are on the same card.
    """
    source = call.args[0]
    device = call.kwargs.get("device")
    wants_card = device is None or device.type in ("cuda", "lazy")
    if wants_card and is_on(source, call.gpu):
        return NotImplemented
    if not wants_card:
        meta = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=META)
        return executor.host.run(OperatorCall(call.func, (meta, *call.args[1:]), call.kwargs))
    results = infer(call)
    alone = OperatorCall(call.func, (), call.kwargs)
    alone.gpu = call.gpu
    return executor.deliver(alone, results)


def check_value(call: OperatorCall) -> None:
    """Refuse a fill value that the type cannot hold, as `fill_` does.

    Raises:
        RuntimeError: With torch's message.
    """
    value, dtype = call.argument("fill_value"), infer(call).fresh[0].dtype
    if not isinstance(value, torch.Tensor):
        with torch._C._DisableTorchDispatch():
            torch.empty((), dtype=dtype, device=CPU).fill_(value)


def zeros_without_memory(executor: Executor, call: OperatorCall) -> Any:
    """Create zeros without memory, which autograd knows to be zeros."""
    return dataless_result(infer(call).shape, call.gpu.index)


def _value(call: OperatorCall) -> tuple[Any, ...]:
    return (call.argument("fill_value"),)


def _one(_call: OperatorCall) -> tuple[Any, ...]:
    return (1,)


def _range(call: OperatorCall) -> tuple[Any, ...]:
    return call.argument("low", 0), call.argument("high")


_BLANK = HostRule(factory=True)
_ONES = HostRule(factory=True, fill=aten.fill_.Scalar, filling=_one)
_FULL = HostRule(factory=True, fill=aten.fill_.Scalar, filling=_value)
_UNIFORM = HostRule(factory=True, fill=aten.uniform_.default)
_NORMAL = HostRule(factory=True, fill=aten.normal_.default)
_INTEGERS = HostRule(factory=True, fill=getattr(aten.random_, "from"), filling=_range)
_UNDEFINED = ValueRule(undefined=True)
_BY_GEOMETRY = ValueRule(by_geometry=True)
OPERATORS = (
    Operator(("empty.memory_format", "empty_strided"), values=_UNDEFINED, host=_BLANK),
    Operator(
        ("empty_like", "new_empty", "new_empty_strided"),
        run=create_like,
        values=_UNDEFINED,
        host=_BLANK,
    ),
    Operator(
        ("zeros_like", "new_zeros"),
        run=create_like,
        values=ValueRule(by_geometry=True, most=fixed(0), below=fixed(1)),
        host=_BLANK,
    ),
    Operator(("ones_like", "new_ones"), run=create_like, values=_BY_GEOMETRY, host=_ONES),
    Operator(
        ("full_like", "new_full"),
        refuse=check_value,
        run=create_like,
        values=_BY_GEOMETRY,
        host=_FULL,
    ),
    Operator(("rand_like",), run=create_like, host=_UNIFORM),
    Operator(("randn_like",), run=create_like, host=_NORMAL),
    Operator(
        (*("empty.*", "empty_strided.*", "empty_like.*", "new_empty.*", "new_empty_strided.*"),),
        host=_BLANK,
    ),
    Operator(
        ("zeros.*", "zeros_like.*", "new_zeros.*"),
        values=ValueRule(most=fixed(0), below=fixed(1)),
        host=_BLANK,
    ),
    Operator(("ones.*", "ones_like.*", "new_ones.*"), host=_ONES),
    Operator(("full",), refuse=check_value, host=_FULL),
    Operator(("full.*", "full_like.*", "new_full.*"), host=_FULL),
    Operator(("_efficientzerotensor",), run=zeros_without_memory),
    Operator(("rand.*", "rand_like.*"), host=_UNIFORM),
    Operator(("randn.*", "randn_like.*"), host=_NORMAL),
    Operator(("randint.*", "randint_like.*"), values=ValueRule(below=drawn), host=_INTEGERS),
)
