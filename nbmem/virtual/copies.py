"""Copies between the CPU and the card, and values that leave the card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.calls import Call
from nbmem.virtual.shapes import infer, spec_of
from nbmem.virtual.tensors import is_virtual
from nbmem.virtual.values import dense

if TYPE_CHECKING:
    from nbmem.virtual.dispatch import CardMode

aten = torch.ops.aten


def to_copy(mode: CardMode, call: Call) -> Any:
    """`.to()`, `.cuda()`, `.cpu()`, `.float()` and the like."""
    source = call.args[0]
    device = call.kwargs.get("device")
    target = source.device if device is None else device
    dtype = call.kwargs.get("dtype") or source.dtype
    layout = call.kwargs.get("memory_format")
    if target.type == "cpu":
        copy = mode.values.on_cpu(source, dtype)
        return copy.contiguous(memory_format=layout) if _plain(layout) else copy
    if target.type == "meta":
        return torch.empty_strided(source.size(), dense(source), dtype=dtype, device="meta")
    if is_virtual(source):
        return NotImplemented
    result = mode.allocate((spec_of(tuple(source.size()), dtype, 0, _strides(source, layout)),))[0]
    mode.values.teach(result, source)
    return result


def _plain(layout: torch.memory_format | None) -> bool:
    return layout is not None and layout is not torch.preserve_format


def _strides(source: torch.Tensor, layout: torch.memory_format | None) -> tuple[int, ...]:
    if not _plain(layout):
        return dense(source)
    meta = torch.empty(source.size(), device="meta", memory_format=layout)
    return meta.stride()


def copy_(mode: CardMode, call: Call) -> Any:
    """`target.copy_(source)` across devices; within the card it is an ordinary kernel."""
    target, source = call.args[0], call.args[1]
    if is_virtual(target) and is_virtual(source):
        return NotImplemented
    if is_virtual(target):
        torch.broadcast_shapes(target.size(), source.size())
        mode.values.follow(call, [])
        return target
    target.copy_(mode.values.on_cpu(source))
    return target


def item(mode: CardMode, call: Call) -> Any:
    """`.item()`, `bool()`, `float()`."""
    tensor = call.args[0]
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    return mode.values.scalar(tensor)


def equal(mode: CardMode, call: Call) -> bool:
    """`torch.equal`: exact where both are known, else what a healthy comparison gives."""
    left, right = call.args[:2]
    if left.size() != right.size():
        return False
    twins = [mode.values.twin(t) if is_virtual(t) else t for t in (left, right)]
    if twins[0] is None or twins[1] is None:
        return True
    return bool(call.func(twins[0], twins[1], *call.args[2:], **call.kwargs))


def lift(mode: CardMode, call: Call) -> Any:
    """A freshly made tensor enters the program as it is."""
    del mode
    return call.args[0]


def like(mode: CardMode, call: Call) -> Any:
    """`empty_like(cpu_tensor, device="cuda")` and its family: only the geometry is taken."""
    source = call.args[0]
    device = call.kwargs.get("device")
    if is_virtual(source):
        if device is None or device.type in ("cuda", "lazy"):
            return NotImplemented
        meta = torch.empty_strided(
            source.size(), source.stride(), dtype=source.dtype, device="meta"
        )
        return call.func(meta, *call.args[1:], **call.kwargs)
    results = infer(call)
    return mode.deliver(Call(call.func, (), call.kwargs), results)


SPECIAL: dict[Any, Any] = {
    aten._to_copy.default: to_copy,
    aten.copy_.default: copy_,
    aten._local_scalar_dense.default: item,
    aten.item.default: item,
    aten.equal.default: equal,
    aten.allclose.default: equal,
    aten.lift_fresh.default: lift,
    aten.lift.default: lift,
}
_LIKES = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
SPECIAL |= {getattr(aten, name).default: like for name in _LIKES}
