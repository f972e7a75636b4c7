"""Moving tensors to the card: what C++ cannot do for a device that no guard stands for."""

from __future__ import annotations

from typing import Any

import torch
from torch import _C

from nbmem.virtual.tensors import CUDA, is_virtual

_Base: Any = _C.TensorBase
_true_to = _Base.to


def card_device(device: Any) -> Any:
    """A device as the program wrote it, with CUDA's index filled in.

    Raises:
        RuntimeError: The machine has only one virtual card.
    """
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int):
        device = torch.device("cuda", device)
    elif isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type in ("cuda", "lazy"):
        if device.index:
            raise RuntimeError(
                "CUDA error: invalid device ordinal\nThe virtual GPU is cuda:0; there is no other."
            )
        return CUDA
    return device


def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`tensor.to(...)`: C++ is given the card by its full name, or not at all if it is there."""
    if args and not isinstance(args[0], (torch.Tensor, torch.dtype)):
        args = (card_device(args[0]), *args[1:])
    if "device" in kwargs:
        kwargs["device"] = card_device(kwargs["device"])
    if is_virtual(self):
        # C++ compares with lazy:0, so a move to the card must not name the device.
        if args and args[0] == CUDA:
            args = args[1:]
            if args and args[0] is None:  # no dtype: what a module says to its integer buffers
                args = args[1:]
        if kwargs.get("device") == CUDA:
            del kwargs["device"]
        if not [a for a in args if not isinstance(a, bool)] and not (
            {"dtype", "memory_format", "other"} & kwargs.keys()
        ):
            copy = kwargs.get("copy") or (len(args) > 1 and args[1])
            return self.clone() if copy else self
        if args and isinstance(args[0], bool):
            return self
        if not args and "dtype" not in kwargs and "other" not in kwargs:
            kwargs["dtype"] = self.dtype
    return _true_to(self, *args, **kwargs)


def cuda(
    self: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """`tensor.cuda()`."""
    del non_blocking
    return to(self, card_device(CUDA if device is None else device), memory_format=memory_format)


def new_tensor(self: torch.Tensor, data: Any, **kwargs: Any) -> torch.Tensor:
    """`tensor.new_tensor(data)`: made on the CPU and moved."""
    if not is_virtual(self) and card_device(kwargs.get("device")) != CUDA:
        return _Base.new_tensor(self, data, **kwargs)
    target = card_device(kwargs.pop("device", None) or CUDA)
    kwargs.setdefault("dtype", self.dtype)
    needs_grad = kwargs.pop("requires_grad", False)
    fresh = torch.tensor(data, device="cpu", **kwargs)
    return fresh.to(target).requires_grad_(needs_grad)


MOVES = {"to": to, "cuda": cuda, "new_tensor": new_tensor}
"""Methods of torch.Tensor."""
