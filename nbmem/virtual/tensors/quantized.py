"""Quantized tensors: integers on the card, a scale on their storage.

C++ reads the quantizer of each tensor that it treats as one of its own class. No tensor from Python
is of that class. So each operator runs in Python (operators/quantized/), on the integers. A tensor
of an activation that has ended raises an error instead of ending the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import _C

from nbmem.virtual.devices import CUDA, LAZY
from nbmem.virtual.tensors.storages import DataKernels, dataless_tensor, original_wrapper

INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
"""The type of the integers in memory, by the quantized type; a card has no other types."""
_HOME = "nbmem_quantizer"
_SET: Any = torch.ops.aten.set_.source_Storage_storage_offset


class Affine(NamedTuple):
    """One scale and zero point for all elements."""

    scale: float
    zero_point: int
    scheme: torch.qscheme = torch.per_tensor_affine


class Channels(NamedTuple):
    """A scale per index of a dimension; the tensors are on the card."""

    scales: torch.Tensor
    zero_points: torch.Tensor
    axis: int
    scheme: torch.qscheme = torch.per_channel_affine


class QuantizedTensor(torch.Tensor):
    """A quantized tensor whose operators are dispatched to Python."""

    __torch_function__ = _C._disabled_torch_function_impl

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as torch pickles its own quantized tensors."""
        return self._reduce_ex_internal(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse an operator after the virtual card is deactivated."""
        del types, args, kwargs
        raise RuntimeError(f"{func}: this quantized tensor is of a virtual card that is gone.")


def is_quantized(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a card's quantized tensor."""
    return type(tensor) is QuantizedTensor


def quantized(integers: torch.Tensor, dtype: torch.dtype, quantizer: Affine | Channels) -> Any:
    """Make a quantized tensor that shares the memory of integers on a card."""
    ordinal = LAZY.index(_C.TensorBase.device.__get__(integers))
    wrapper = original_wrapper(
        QuantizedTensor, (0,), (1,), 0, dtype=dtype, device=LAZY[ordinal], storage_size=0
    )
    with DataKernels():
        made = torch.Tensor._make_subclass(
            QuantizedTensor, wrapper, False, device_for_backend_keys=CUDA[0]
        )
    place(made, integers, integers.storage_offset(), integers.size(), integers.stride())
    attach_quantizer(made, quantizer)
    return made


def attach_quantizer(tensor: torch.Tensor, quantizer: Affine | Channels) -> None:
    """Attach a quantizer to a tensor's storage."""
    setattr(tensor.untyped_storage(), _HOME, quantizer)


def integers_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a quantized tensor as integers."""
    ordinal = LAZY.index(_C.TensorBase.device.__get__(tensor))
    made = dataless_tensor((0,), (1,), 0, INTEGERS[tensor.dtype], 0, ordinal)
    return place(made, tensor, tensor.storage_offset(), tensor.size(), tensor.stride())


def place(
    tensor: torch.Tensor, where: Any, offset: int, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """Move a tensor to a place in another storage.

    `where` is that storage, or a tensor in it.
    """
    storage = where.untyped_storage() if isinstance(where, torch.Tensor) else where
    if not tensor.is_quantized:
        with DataKernels():
            return tensor.set_(storage, offset, size, stride)
    with _C._DisableTorchDispatch():  # the one of its kernels that is there, on all builds
        return _SET._op_dk(_C.DispatchKey.QuantizedCPU, tensor, storage, offset, size, stride)


def quantizer_of(tensor: torch.Tensor) -> Any:
    """Return the Affine or Channels of a quantized tensor."""
    return getattr(tensor.untyped_storage(), _HOME)
