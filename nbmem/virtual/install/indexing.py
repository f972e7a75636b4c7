"""`x[[0, 2]]`: lists and arrays as indices, which C++ would move to the card below every hook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import _C

from nbmem.virtual.install.patches import Patch, wanted
from nbmem.virtual.tensors import is_virtual

if TYPE_CHECKING:
    from collections.abc import Sequence

_Base: Any = _C.TensorBase
_SEQUENCES = (list, tuple, range, np.ndarray)
_PARTS = (torch.Tensor, slice, type(None), type(Ellipsis))


def indexing_patches() -> list[Patch]:
    """Reading and writing by index."""

    def getitem(self: torch.Tensor, index: Any) -> torch.Tensor:
        __tracebackhide__ = True
        return _Base.__getitem__(self, _on_card(self, index))

    def setitem(self: torch.Tensor, index: Any, value: Any) -> None:
        __tracebackhide__ = True
        _Base.__setitem__(self, _on_card(self, index), value)

    return wanted(torch.Tensor, {"__getitem__": getitem, "__setitem__": setitem})


def _on_card(tensor: torch.Tensor, index: Any) -> Any:
    """The index with every sequence of numbers as a tensor beside the one that is indexed."""
    if type(index) is tuple:
        if any(isinstance(item, _SEQUENCES) for item in index) and is_virtual(tensor):
            return tuple(
                [_tensor(i, tensor.device) if isinstance(i, _SEQUENCES) else i for i in index]
            )
    elif (
        isinstance(index, _SEQUENCES)
        and is_virtual(tensor)
        and not any(isinstance(item, _PARTS) for item in index)
    ):
        return _tensor(index, tensor.device)
    return index


def _tensor(numbers: Sequence[Any] | np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    made = torch.tensor(numbers, device="cpu")
    return (made if made.numel() else made.long()).to(device)
