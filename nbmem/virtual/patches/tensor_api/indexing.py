"""Indexing of virtual tensors, in reading and in assignment.

C++ would move the numbers of `x[[0, 2]]` or the value of `x[mask] = 0` to the card itself, where no
patch or dispatch mode sees it.

For CUDA, C++ leaves a number on the CPU, so that a mask becomes a masked fill and a slice a fill:
https://github.com/pytorch/pytorch/blob/v2.11.0/torch/csrc/autograd/python_variable_indexing.cpp
(THPVariable_setitem)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import _C

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of

_Base: Any = _C.TensorBase
_SEQUENCES = (list, tuple, range, np.ndarray)
_NUMBERS = (int, float, complex)
_MASKS = (torch.bool, torch.uint8)
_PARTS = (torch.Tensor, slice, type(None), type(Ellipsis))


def indexing_patches() -> list[Patch]:
    """Return patches of Tensor.__getitem__ and Tensor.__setitem__."""

    def getitem(self: torch.Tensor, index: Any) -> torch.Tensor:
        __tracebackhide__ = True
        return _Base.__getitem__(self, _on_card(self, index))

    def setitem(self: torch.Tensor, index: Any, value: Any) -> None:
        __tracebackhide__ = True
        if isinstance(value, _NUMBERS) and is_virtual(self) and not _has_element_numbers(index):
            value = torch.scalar_tensor(value, dtype=self.dtype, device="cpu")
        _Base.__setitem__(self, _on_card(self, index), value)

    return patches_of(torch.Tensor, {"__getitem__": getitem, "__setitem__": setitem})


def _on_card(tensor: torch.Tensor, index: Any) -> Any:
    """Return an index whose sequences of numbers are tensors.

    They are on the device of the indexed tensor. The index of a tensor that is not virtual is
    unchanged.
    """
    if type(index) is tuple:
        if any(isinstance(item, _SEQUENCES) for item in index) and is_virtual(tensor):
            return tuple(
                [_index_tensor(i, tensor.device) if isinstance(i, _SEQUENCES) else i for i in index]
            )
    elif (
        isinstance(index, _SEQUENCES)
        and is_virtual(tensor)
        and not any(isinstance(item, _PARTS) for item in index)
    ):
        return _index_tensor(index, tensor.device)
    return index


def _has_element_numbers(index: Any) -> bool:
    """Return whether an index lists elements by number.

    The kernel for such an index needs the value on the card, too.
    """
    parts = index if type(index) is tuple else (index,)
    return any(
        isinstance(part, _SEQUENCES)
        or (isinstance(part, torch.Tensor) and part.dim() and part.dtype not in _MASKS)
        for part in parts
    )


def _index_tensor(
    numbers: Sequence[Any] | np.ndarray[Any, Any], device: torch.device
) -> torch.Tensor:
    made = torch.tensor(numbers, device="cpu")
    return (made if made.numel() else made.long()).to(device)
