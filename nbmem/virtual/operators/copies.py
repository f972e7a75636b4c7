"""Copies between devices, and values that the CPU reads from a card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import LAZY, cpp_device, is_virtual
from nbmem.virtual.operator_model.operator import Operator
from nbmem.virtual.operators.quantized.constructors import to_copy as moved
from nbmem.virtual.tensors import assumptions
from nbmem.virtual.tensors.host.lazy_tensors import HostRule
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import as_meta, dense, infer, is_dense, is_expanded, one, spec_of
from nbmem.virtual.tensors.stand_ins.numbers import stand_in
from nbmem.virtual.tensors.stand_ins.value_signs import copied, set_sign_and_seed
from nbmem.virtual.tensors.unsupported import no_such_tensors
from nbmem.virtual.tensors.value_bounds import as_before, below_in, source_count
from nbmem.virtual.tensors.value_rules import ValueRule, same_health

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.shapes import Results

aten = torch.ops.aten
MAX_SCANNED_ELEMENTS = 1 << 26
"""Elements up to which a copy is scanned: the adjacency of a graph of 8,192 nodes."""


def to_copy(executor: Executor, call: OperatorCall) -> Any:
    """Run `_to_copy`: `.to()`, `.cuda()`, `.cpu()`, `.float()` and so on."""
    source = call.args[0]
    device = call.kwargs.get("device")
    target = source.device if device is None else device
    dtype = call.kwargs.get("dtype") or source.dtype
    layout = call.kwargs.get("memory_format")
    if source.is_quantized:
        return moved(executor, call)
    if source.layout is not torch.strided or source.is_nested:
        raise no_such_tensors("of another layout than strided")
    _check_capture(executor, call, source, target.type)
    if not _is_non_blocking(call):
        call.gpu.stream_timing.wait(call.gpu.stream.handle)
    if target.type == "cpu":
        _stage_download(
            executor, call, source, _meta(source.size(), _strides(source, layout), dtype)
        )
        copy = executor.values.on_cpu(source, dtype)
        if _is_non_blocking(call):
            executor.pinned.pin(copy)
        return copy.contiguous(memory_format=layout) if _plain(layout) else copy
    if target.type == "meta":
        return torch.empty_strided(source.size(), dense(source), dtype=dtype, device="meta")
    if is_on(source, call.gpu):
        return NotImplemented
    spec = spec_of(tuple(source.size()), dtype, 0, _strides(source, layout))
    result = executor.allocate(call.gpu, (spec,))[0]
    if not is_virtual(source):
        _stage_upload(executor, call, result, as_meta(source))
    set_sign_and_seed(executor.values, result, copied(executor.values, call))
    value = executor.values.cpu_values(source) if is_virtual(source) else source
    if value is not None:
        executor.values.teach(result, value)
        _bound(executor, result, source)
    return result


def _check_capture(executor: Executor, call: OperatorCall, source: torch.Tensor, to: str) -> None:
    """Refuse a copy that a CUDA graph cannot capture.

    That is a copy of unpinned CPU memory, which may be freed, or one that the host waits for.
    """
    if call.gpu.capture and (to == "cpu" or not is_virtual(source)):
        queued = _is_non_blocking(call)
        pinned = queued if to == "cpu" else executor.pinned.holds(source)
        call.gpu.capture.check_copy(call.gpu.stream.handle, pinned=pinned, waits=not queued)


def _bound(executor: Executor, result: torch.Tensor, source: torch.Tensor) -> None:
    """Store bounds of copied values that are too many to store themselves.

    A bound of the values is the number of a graph's nodes. The number of nonzero values of a
    matrix is the number of an adjacency's edges.
    """
    block = executor.storages.of(result)
    if block is None or block.cpu_values is not None or is_virtual(source):
        return
    if source.numel() > MAX_SCANNED_ELEMENTS or executor.host.kept_of(source) is not None:
        return
    block.below = below_in(source)
    if source.dim() == 2:
        block.most = int(torch.count_nonzero(source))


def is_on(tensor: torch.Tensor, gpu: VirtualGPU) -> bool:
    """Return whether a tensor is on that card."""
    return bool(cpp_device(tensor) == LAZY[gpu.index])


def _plain(layout: torch.memory_format | None) -> bool:
    return layout is not None and layout is not torch.preserve_format


def _strides(source: torch.Tensor, layout: torch.memory_format | None) -> tuple[int, ...]:
    if not _plain(layout):
        return dense(source)
    meta = torch.empty(source.size(), device="meta", memory_format=layout)
    return meta.stride()


def _stage_upload(
    executor: Executor, call: OperatorCall, result: torch.Tensor, source: torch.Tensor
) -> None:
    """Take and free the temporary copies of a copy from the CPU to a card.

    A copy moves one stretch of memory to another. A result that is not contiguous passes
    through a contiguous copy on the card, unless both sides have their elements in the same
    dense order. Values are converted on the CPU, or on the card if the program does not wait
    for the copy. aten/src/ATen/native/cuda/Copy.cu: copy_kernel_cuda, copy_requires_temporaries
    """
    queued = _is_non_blocking(call)
    converted = queued and source.dtype is not result.dtype
    if _is_one_stretch(result, source) or (result.is_contiguous() and not converted):
        return
    dtype = source.dtype if converted else result.dtype
    executor.allocate(call.gpu, (spec_of(tuple(result.size()), dtype, 0),))


def _stage_download(
    executor: Executor, call: OperatorCall, source: torch.Tensor, result: torch.Tensor
) -> None:
    """Take and free the temporary copies of a copy from a card to the CPU.

    The conditions are those of a copy from the CPU, with the sides exchanged.
    """
    if _is_one_stretch(source, result):
        return
    size, converted = tuple(source.size()), None
    if _is_non_blocking(call) and source.dtype is not result.dtype:
        strides = dense(source)
        converted = executor.allocate(call.gpu, (spec_of(size, result.dtype, 0, strides),))
    if not (source if converted is None else converted[0]).is_contiguous():
        dtype = source.dtype if converted is None else result.dtype
        contiguous = executor.allocate(call.gpu, (spec_of(size, dtype, 0),))
        del converted, contiguous


def _is_non_blocking(call: OperatorCall) -> bool:
    """Return whether the copy is non-blocking."""
    return bool(call.argument("non_blocking", False))


def _is_one_stretch(here: torch.Tensor, there: torch.Tensor) -> bool:
    """Return whether one stretch of bytes can be copied as it is.

    Both sides have one type and the same dense order of elements, or there are no elements.
    """
    places = zip(here.size(), here.stride(), there.stride(), strict=True)
    equal = all(ours == theirs for size, ours, theirs in places if size > 1)
    alike = here.dtype is there.dtype and equal
    return not here.numel() or (alike and is_dense(here))


def _meta(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def copy_(executor: Executor, call: OperatorCall) -> Any:
    """Run `target.copy_(source)` across devices.

    Within a card it is an ordinary kernel, and NotImplemented is returned.

    Known limit: copies between cards that cannot reach each other's memory (GeForce) are
    treated as if they could. The temporary memory of a copy that also converts is missing.
    """
    target, source = call.args[0], call.args[1]
    if is_virtual(target) and cpp_device(source) == cpp_device(target):
        return NotImplemented
    if call.gpu.capture and is_virtual(target) is not is_virtual(source):
        pinned = executor.pinned.holds(source if is_virtual(target) else target)
        waits = not _is_non_blocking(call)
        call.gpu.capture.check_copy(call.gpu.stream.handle, pinned=pinned, waits=waits)
    if is_virtual(target):
        shape = torch.broadcast_shapes(target.size(), source.size())
        if not is_virtual(source) and shape == target.size():
            _stage_upload(executor, call, target, as_meta(source).expand(shape))
        executor.values.follow(call, [])
        return target
    if torch.broadcast_shapes(target.size(), source.size()) == target.size():  # else it is refused
        given = as_meta(source).expand(target.size())
        _stage_download(executor, call, given, as_meta(target))
    value = executor.values.on_cpu(source)
    return executor.host.run(OperatorCall(aten.copy_.default, (target, value), {}))


def copy_each(executor: Executor, call: OperatorCall) -> Any:
    """Run `torch._foreach_copy_` across devices, one copy after another."""
    targets, sources = call.args[:2]
    if all(is_on(tensor, call.gpu) for tensor in call.tensors):
        return NotImplemented
    with executor:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    return None


def item(executor: Executor, call: OperatorCall) -> Any:
    """Return a tensor's only value: `.item()`, `bool()`, `float()`."""
    tensor = call.args[0]
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    return executor.values.scalar(tensor)


def assert_async(executor: Executor, call: OperatorCall) -> None:
    """Raise the card's assertion error if the condition is known to fail.

    Raises:
        RuntimeError: A real card raises it at the next synchronization.
    """
    condition = call.args[0]
    if condition.numel() != 1:
        count = "more than one value" if condition.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {count} is ambiguous")
    cpu_values = executor.values.cpu_values(condition)
    if cpu_values is not None and not bool(cpu_values):
        raise RuntimeError("CUDA error: device-side assert triggered")


def equal(executor: Executor, call: OperatorCall) -> bool:
    """Run `torch.equal` or `allclose`, exactly if both sides are known.

    Otherwise the sides are taken to be equal, with two exceptions. Known bools are compared with
    the stand-in value of the unknown ones. Random floats equal no known numbers, and no other
    random ones. The comparison's memory is taken on the card.
    """
    left, right = call.args[:2]
    if left.size() != right.size():
        return False
    with executor:  # What is compared on the card takes its memory there.
        if call.func is aten.allclose.default:
            close = torch.isclose(*call.args, **call.kwargs)
            close.all()
            del close
        elif is_virtual(left) and is_virtual(right) and left.numel():
            same = left.eq(right)
            same.all()
            del same
    on_cpu = [executor.values.cpu_values(t) if is_virtual(t) else t for t in (left, right)]
    if on_cpu[0] is None or on_cpu[1] is None:
        known, unknown = (on_cpu[0], right) if on_cpu[1] is None else (on_cpu[1], left)
        if call.func is aten.equal.default and _compares_random_floats(
            executor, left, right, known
        ):
            return False
        if known is None or known.dtype is not torch.bool:
            return True
        return bool((known == stand_in(torch.bool, executor.storages.of(unknown))).all())
    return bool(call.func(on_cpu[0], on_cpu[1], *call.args[2:], **call.kwargs))


def _compares_random_floats(
    executor: Executor, left: torch.Tensor, right: torch.Tensor, known: torch.Tensor | None
) -> bool:
    """Return whether random floats meet known or other random ones."""
    blocks = [executor.storages.of(t) for t in (left, right) if is_virtual(t)]
    drawn = [block for block in blocks if block is not None and block.drawn]
    if known is not None:
        return bool(drawn) and known.numel() > 0
    return len(drawn) == len({id(block) for block in drawn}) > 1


def lift(executor: Executor, call: OperatorCall) -> Any:
    """Return a freshly created tensor unchanged."""
    return call.args[0]


def shape_scattered(call: OperatorCall) -> Results:
    """Return a result with the argument's strides, contiguous if expanded.

    Torch's rule in Python preserves the strides of an expanded tensor up to 2.11; its kernels never
    did. aten/src/ATen/native/TensorShape.cpp: clone_preserve_strides
    """
    tensor = call.args[0]
    return one(tensor.size(), tensor.dtype) if is_expanded(tensor) else infer(call)


def shape_clone(call: OperatorCall) -> Results:
    """Return the result of `clone`, also for geometries that overlap."""
    tensor, layout = call.args[0], call.argument("memory_format")
    return one(tensor.size(), tensor.dtype, _strides(tensor, layout))


OPERATORS = (
    Operator(
        ("_to_copy",),
        run=to_copy,
        values=ValueRule(
            health=same_health, most=source_count, below=as_before, assumes=assumptions.same
        ),
        host=HostRule(copies=True),
    ),
    Operator(
        ("diagonal_scatter", "select_scatter", "slice_scatter", "as_strided_scatter"),
        shape=shape_scattered,
    ),
    Operator(
        ("clone",),
        shape=shape_clone,
        values=ValueRule(
            health=same_health, most=source_count, below=as_before, assumes=assumptions.same
        ),
        host=HostRule(copies=True),
    ),
    Operator(
        ("copy_",), run=copy_, values=ValueRule(overwrites=True), host=HostRule(overwrites=True)
    ),
    Operator(("_foreach_copy_",), run=copy_each, mixes_devices=True),
    Operator(("_local_scalar_dense", "item"), run=item),
    Operator(("_assert_async", "_assert_async.msg"), run=assert_async),
    Operator(("equal", "allclose"), run=equal),
    Operator(("lift", "lift_fresh"), run=lift),
)
