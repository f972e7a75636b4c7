"""Copies between the CPU and a card or between two cards, and values that leave a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import LAZY, is_virtual, true_device
from nbmem.virtual.tensors.calls import Call
from nbmem.virtual.tensors.shapes import infer, no_such_tensors, spec_of
from nbmem.virtual.tensors.values import dense, stand_in

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.operators.dispatch import CardMode

aten = torch.ops.aten


def to_copy(mode: CardMode, call: Call) -> Any:
    """`.to()`, `.cuda()`, `.cpu()`, `.float()` and the like."""
    source = call.args[0]
    device = call.kwargs.get("device")
    target = source.device if device is None else device
    dtype = call.kwargs.get("dtype") or source.dtype
    layout = call.kwargs.get("memory_format")
    if source.layout is not torch.strided or source.is_quantized or source.is_nested:
        raise no_such_tensors("of another layout than strided, or quantized")
    if not call.kwargs.get("non_blocking"):
        call.gpu.busy.clear(call.gpu.stream.handle)
    if target.type == "cpu":
        copy = mode.values.on_cpu(source, dtype)
        if call.kwargs.get("non_blocking"):
            mode.pinned.pin(copy)
        return copy.contiguous(memory_format=layout) if _plain(layout) else copy
    if target.type == "meta":
        return torch.empty_strided(source.size(), dense(source), dtype=dtype, device="meta")
    if _is_on(source, call.gpu):
        return NotImplemented
    spec = spec_of(tuple(source.size()), dtype, 0, _strides(source, layout))
    result = mode.allocate(call.gpu, (spec,))[0]
    value = mode.values.twin(source) if is_virtual(source) else source
    if value is not None:
        mode.values.teach(result, value)
    return result


def _is_on(tensor: torch.Tensor, gpu: VirtualGPU) -> bool:
    return bool(true_device(tensor) == LAZY[gpu.index])


def _plain(layout: torch.memory_format | None) -> bool:
    return layout is not None and layout is not torch.preserve_format


def _strides(source: torch.Tensor, layout: torch.memory_format | None) -> tuple[int, ...]:
    if not _plain(layout):
        return dense(source)
    meta = torch.empty(source.size(), device="meta", memory_format=layout)
    return meta.stride()


def copy_(mode: CardMode, call: Call) -> Any:
    """`target.copy_(source)` across devices; within a card it is an ordinary kernel.

    Known limit: cards that cannot reach each other's memory (GeForce) are copied between as if they
    could: what a copy that also converts takes for a moment is missing.
    """
    target, source = call.args[0], call.args[1]
    if is_virtual(target) and true_device(source) == true_device(target):
        return NotImplemented
    if is_virtual(target):
        torch.broadcast_shapes(target.size(), source.size())
        mode.values.follow(call, [])
        return target
    value = mode.values.on_cpu(source)
    return mode.host.run(Call(aten.copy_.default, (target, value), {}))


def copy_each(mode: CardMode, call: Call) -> Any:
    """`torch._foreach_copy_`: across devices it is one copy after the other."""
    targets, sources = call.args[:2]
    if all(_is_on(tensor, call.gpu) for tensor in call.tensors):
        return NotImplemented
    with mode:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    return None


def item(mode: CardMode, call: Call) -> Any:
    """`.item()`, `bool()`, `float()`."""
    tensor = call.args[0]
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    return mode.values.scalar(tensor)


def assert_async(mode: CardMode, call: Call) -> None:
    """A condition that the card checks by itself: where it is known, it fails at once.

    Raises:
        RuntimeError: As a card says it at the next synchronisation.
    """
    condition = call.args[0]
    if condition.numel() != 1:
        count = "more than one value" if condition.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {count} is ambiguous")
    twin = mode.values.twin(condition)
    if twin is not None and not bool(twin):
        raise RuntimeError("CUDA error: device-side assert triggered")


def equal(mode: CardMode, call: Call) -> bool:
    """`torch.equal`: exact where both are known, else what a healthy comparison gives."""
    left, right = call.args[:2]
    if left.size() != right.size():
        return False
    with mode:  # What is compared on the card takes its memory there.
        if call.func is aten.allclose.default:
            close = torch.isclose(*call.args, **call.kwargs)
            close.all()
            del close
        elif is_virtual(left) and is_virtual(right) and left.numel():
            same = left.eq(right)
            same.all()
            del same
    twins = [mode.values.twin(t) if is_virtual(t) else t for t in (left, right)]
    if twins[0] is None or twins[1] is None:
        known, unknown = (twins[0], right) if twins[1] is None else (twins[1], left)
        if known is None or known.dtype is not torch.bool:
            return True
        return bool((known == stand_in(torch.bool, mode.storages.of(unknown))).all())
    return bool(call.func(twins[0], twins[1], *call.args[2:], **call.kwargs))


def lift(mode: CardMode, call: Call) -> Any:
    """A freshly made tensor enters the program as it is."""
    del mode
    return call.args[0]


def like(mode: CardMode, call: Call) -> Any:
    """`empty_like(cpu_tensor, device="cuda")` and its family: only the geometry is taken."""
    source = call.args[0]
    device = call.kwargs.get("device")
    wants_card = device is None or device.type in ("cuda", "lazy")
    if wants_card and _is_on(source, call.gpu):
        return NotImplemented
    if not wants_card:
        meta = torch.empty_strided(
            source.size(), source.stride(), dtype=source.dtype, device="meta"
        )
        return mode.host.run(Call(call.func, (meta, *call.args[1:]), call.kwargs))
    results = infer(call)
    alone = Call(call.func, (), call.kwargs)
    alone.gpu = call.gpu
    return mode.deliver(alone, results)


SPECIAL: dict[Any, Any] = {
    aten._to_copy.default: to_copy,
    aten.copy_.default: copy_,
    aten._foreach_copy_.default: copy_each,
    aten._local_scalar_dense.default: item,
    aten.item.default: item,
    aten._assert_async.default: assert_async,
    aten._assert_async.msg: assert_async,
    aten.equal.default: equal,
    aten.allclose.default: equal,
    aten.lift_fresh.default: lift,
    aten.lift.default: lift,
}
_LIKES = (
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
)  # fmt: skip
SPECIAL |= {getattr(aten, name).default: like for name in _LIKES}
