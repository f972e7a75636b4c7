"""Moves of tensors to a card.

C++ cannot make them for a device that has no guard.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C
from torch.nn import parameter

from nbmem.virtual import current_machine
from nbmem.virtual.devices import CUDA, is_virtual
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.patches.tensor_api.list_arguments import replace_tensors

_Base: Any = _C.TensorBase
_Device: Any = torch.device
_original_to = _Base.to


def card_device(device: Any) -> Any:
    """Return a device with the index of a card filled in.

    Other devices, None and booleans stay as they are.

    Raises:
        RuntimeError: The machine has no such card.
    """
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int):
        device = torch.device("cuda", device)
    elif isinstance(device, str):
        device = torch.device(device)
    if is_card(device):
        machine = current_machine.machine()
        assert machine is not None
        return CUDA[machine.gpu(device).index]
    return device


def is_card(device: Any) -> bool:
    """Return whether an object is the device of a card."""
    return isinstance(device, _Device) and device.type in ("cuda", "lazy")


def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Move or convert a tensor, as `tensor.to(...)`.

    C++ is given the card by its full name, or not at all if the tensor is there.
    """
    if args and not isinstance(args[0], (torch.Tensor, torch.dtype)):
        args = (card_device(args[0]), *args[1:])
    if "device" in kwargs:
        kwargs["device"] = card_device(kwargs["device"])
    if is_virtual(self):
        # C++ compares with lazy, so a move to where the tensor is must not name the device.
        home = self.device
        if args and args[0] == home:
            args = args[1:]
            if args and args[0] is None:  # no dtype: as modules move their integer buffers
                args = args[1:]
        if kwargs.get("device") == home:
            del kwargs["device"]
        if not [a for a in args if not isinstance(a, bool)] and not (
            {"device", "dtype", "memory_format", "other"} & kwargs.keys()
        ):
            copy = kwargs.get("copy") or (len(args) > 1 and args[1])
            return self.clone() if copy else self
        if args and isinstance(args[0], bool):
            return self
        if not args and "dtype" not in kwargs and "other" not in kwargs:
            kwargs["dtype"] = self.dtype
    return _original_to(self, *args, **kwargs)


def cuda(
    self: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """Move a tensor to a card, as `tensor.cuda()`."""
    target = card_device("cuda" if device is None else device)
    return to(self, target, non_blocking=non_blocking, memory_format=memory_format)


def new_tensor(self: torch.Tensor, data: Any, **kwargs: Any) -> torch.Tensor:
    """Make a tensor on the CPU and move it, as `tensor.new_tensor(data)`."""
    wish = kwargs.pop("device", None)
    target = card_device(self.device if wish is None else wish)
    kwargs.setdefault("dtype", self.dtype)
    data, _ = replace_tensors(data)
    if not is_card(target):
        return _Base.new_tensor(self, data, device=target, **kwargs)
    needs_grad = kwargs.pop("requires_grad", False)
    fresh = torch.tensor(data, device="cpu", **kwargs)
    return fresh.to(target).requires_grad_(needs_grad)


def lazy_patches() -> list[Patch]:
    """Return a patch that lets parameters of lazy modules be moved.

    Only functions in a list of theirs may move them.
    """
    lazy: Any = vars(parameter)["UninitializedTensorMixin"]
    return [Patch(lazy, "_allowed_methods", [*lazy._allowed_methods, to, cuda])]


MOVES = {"to": to, "cuda": cuda, "new_tensor": new_tensor}
"""Methods of torch.Tensor."""
