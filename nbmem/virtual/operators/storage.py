"""Operators on storages: resize, set, pinned memory, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.tensors.storages import DataKernels, bare

if TYPE_CHECKING:
    from nbmem.virtual.operators.dispatch import CardMode
    from nbmem.virtual.tensors.calls import Call

aten = torch.ops.aten


def resize_(mode: CardMode, call: Call) -> Any:
    """`resize_`: a storage that is too small is replaced, as the card copies into a larger block.

    Known limit: other views of the old storage do not follow: one without data cannot grow.
    """
    tensor, size = call.args[0], tuple(call.args[1])
    count = torch.Size(size).numel()
    needed = (tensor.storage_offset() + count) * tensor.element_size() if count else 0
    strides = torch.empty(size, device="meta").stride()
    if needed > tensor.untyped_storage().nbytes():
        fresh = bare(size, strides, 0, tensor.dtype, needed, call.gpu.index)
        mode.storages.adopt(fresh, call.gpu)
        with DataKernels():
            tensor.set_(fresh.untyped_storage(), 0, size, strides)
        return tensor
    with DataKernels():
        return tensor.as_strided_(size, strides, tensor.storage_offset())


def set_storage(mode: CardMode, call: Call) -> Any:
    """`set_(storage, offset, size, stride)`: the tensor's old storage may die."""
    del mode
    with DataKernels():
        call.func(*call.args, **call.kwargs)
    return call.args[0]


def record_stream(mode: CardMode, call: Call) -> None:
    """Another stream uses this memory, too."""
    tensor, stream = call.args
    block = mode.storages.of(tensor) if is_virtual(tensor) else None
    if block is not None and block.addr:
        block.gpu.record_stream(block.addr, int(getattr(stream, "cuda_stream", 0)))


def is_pinned(mode: CardMode, call: Call) -> bool:
    """Nothing on the card is pinned host memory."""
    del mode, call
    return False


SPECIAL: dict[Any, Any] = {
    aten.resize_.default: resize_,
    aten.set_.source_Tensor: set_storage,
    aten.set_.source_Storage: set_storage,
    aten.set_.source_Storage_storage_offset: set_storage,
    aten.set_.source_Tensor_storage_offset
    if hasattr(aten.set_, "source_Tensor_storage_offset")
    else aten.set_.default: set_storage,
    aten.record_stream.default: record_stream,
    aten.is_pinned.default: is_pinned,
}
