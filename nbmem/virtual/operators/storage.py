"""Operators on storages: resize, set, pinned memory and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.tensors.storages import DataKernels, dataless_tensor

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


def resize_(executor: Executor, call: OperatorCall) -> Any:
    """Run `resize_`; a storage that is too small is replaced.

    The card copies into a larger block.

    Known limit: other views of the old storage do not follow, as one without data cannot grow.
    """
    tensor, size = call.args[0], tuple(call.args[1])
    count = torch.Size(size).numel()
    needed = (tensor.storage_offset() + count) * tensor.element_size() if count else 0
    strides = torch.empty(size, device="meta").stride()
    if needed > tensor.untyped_storage().nbytes():
        fresh = dataless_tensor(size, strides, 0, tensor.dtype, needed, call.gpu.index)
        executor.storages.adopt(fresh, call.gpu)
        with DataKernels():
            tensor.set_(fresh.untyped_storage(), 0, size, strides)
        return tensor
    with DataKernels():
        return tensor.as_strided_(size, strides, tensor.storage_offset())


def resize_as_(executor: Executor, call: OperatorCall) -> Any:
    """Run `resize_as_`: resize to the shape of another tensor."""
    tensor, template = call.args[:2]
    with executor:
        return tensor.resize_(template.size())


def set_nothing(executor: Executor, call: OperatorCall) -> Any:
    """Run `set_()`: give the tensor no memory and no elements."""
    tensor = call.args[0]
    fresh = dataless_tensor((0,), (1,), 0, tensor.dtype, 0, call.gpu.index)
    executor.storages.adopt(fresh, call.gpu)
    with DataKernels():
        return tensor.set_(fresh.untyped_storage(), 0, (0,), (1,))


def as_strided(executor: Executor, call: OperatorCall) -> Any:
    """Check that `as_strided` stays inside the storage.

    Shape-only kernels do not check it, because their storages have no end.

    Raises:
        RuntimeError: The view would reach beyond, in torch's words.
    """
    tensor, size, stride = call.args[:3]
    given = call.argument("storage_offset")
    offset = tensor.storage_offset() if given is None else given
    item, held = tensor.element_size(), tensor.untyped_storage().nbytes()
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    needed = (offset + last + 1) * item if all(size) else 0
    if needed > held:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {item} requiring a storage size of {needed} are out of bounds for storage "
            f"of size {held}"
        )
    return NotImplemented


def set_storage(executor: Executor, call: OperatorCall) -> Any:
    """Run `set_` with a storage; the tensor's old storage may be freed."""
    with DataKernels():
        call.func(*call.args, **call.kwargs)
    return call.args[0]


def record_stream(executor: Executor, call: OperatorCall) -> None:
    """Run `record_stream`: another stream uses this memory, too."""
    tensor, stream = call.args
    block = executor.storages.of(tensor) if is_virtual(tensor) else None
    if block is not None and block.addr:
        block.gpu.record_stream(block.addr, int(getattr(stream, "cuda_stream", 0)))


def is_pinned(executor: Executor, call: OperatorCall) -> bool:
    """Return False: nothing on the card is pinned host memory."""
    return False


OPERATORS = (
    Operator(("resize_",), run=resize_),
    Operator(("resize_as_",), run=resize_as_),
    Operator(("as_strided", "as_strided_"), run=as_strided),
    Operator(("set_",), run=set_nothing),
    Operator(
        (
            *("set_.source_Tensor", "set_.source_Storage"),
            *("set_.source_Storage_storage_offset", "set_.source_Tensor_storage_offset"),
        ),
        run=set_storage,
    ),
    Operator(("record_stream",), run=record_stream),
    Operator(("is_pinned",), run=is_pinned),
)
