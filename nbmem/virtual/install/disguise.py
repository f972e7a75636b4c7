"""What Python sees of a virtual tensor: a CUDA tensor with an address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch.utils import _device as default_devices

from nbmem.virtual.install.patches import Patch, wanted
from nbmem.virtual.tensors import CUDA, is_virtual, true_device

if TYPE_CHECKING:
    from nbmem.virtual.dispatch import CardMode

_Base = _C.TensorBase
_true_to = _Base.to
_true_pin = _Base.pin_memory
_LAZY_TYPE = "lazy"


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
    if isinstance(device, torch.device) and device.type in ("cuda", _LAZY_TYPE):
        if device.index:
            raise RuntimeError(
                "CUDA error: invalid device ordinal\nThe virtual GPU is cuda:0; there is no other."
            )
        return CUDA
    return device


def tensor_patches(mode: CardMode) -> list[Patch]:
    """Attributes and methods of torch.Tensor."""

    def device(self: torch.Tensor) -> torch.device:
        real = true_device(self)
        return CUDA if real.type == _LAZY_TYPE else real

    def is_cuda(self: torch.Tensor) -> bool:
        return bool(true_device(self).type in (_LAZY_TYPE, "cuda"))

    def get_device(self: torch.Tensor) -> int:
        return 0 if is_virtual(self) else _Base.get_device(self)

    def data_ptr(self: torch.Tensor) -> int:
        if not is_virtual(self):
            return _Base.data_ptr(self)
        block = mode.storages.of(self)
        if block is None or not block.addr or not self.numel():
            return 0
        return block.addr + self.storage_offset() * self.element_size()

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args and not isinstance(args[0], (torch.Tensor, torch.dtype)):
            args = (card_device(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = card_device(kwargs["device"])
        if is_virtual(self):
            # C++ compares with lazy:0, so a move to the card must not name the device.
            if args and args[0] == CUDA:
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
        del non_blocking
        return to(
            self, card_device(CUDA if device is None else device), memory_format=memory_format
        )

    def new_tensor(self: torch.Tensor, data: Any, **kwargs: Any) -> torch.Tensor:
        if not is_virtual(self) and card_device(kwargs.get("device")) != CUDA:
            return _Base.new_tensor(self, data, **kwargs)
        target = card_device(kwargs.pop("device", None) or CUDA)
        kwargs.setdefault("dtype", self.dtype)
        needs_grad = kwargs.pop("requires_grad", False)
        fresh = torch.tensor(data, device="cpu", **kwargs)
        return fresh.to(target).requires_grad_(needs_grad)

    def tolist(self: torch.Tensor) -> Any:
        return _Base.tolist(self.detach().cpu() if is_virtual(self) else self)

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if is_virtual(self):
            if not force:
                raise TypeError(
                    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy "
                    "the tensor to host memory first."
                )
            self = self.detach().cpu()
        return _Base.numpy(self, force=force)

    def pin_memory(self: torch.Tensor, *_args: Any) -> torch.Tensor:
        if is_virtual(self):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        return self

    def is_pinned(self: torch.Tensor, *_args: Any) -> bool:
        del self
        return False

    def array_interface(self: torch.Tensor) -> dict[str, Any]:
        if is_virtual(self):
            raise AttributeError(
                "A tensor on a virtual GPU has no data for another library to read."
            )
        raise AttributeError("Can't get __cuda_array_interface__ on a CPU tensor.")

    names = {
        "device": property(device),
        "is_cuda": property(is_cuda),
        "get_device": get_device,
        "data_ptr": data_ptr,
        "to": to,
        "cuda": cuda,
        "new_tensor": new_tensor,
        "tolist": tolist,
        "numpy": numpy,
        "pin_memory": pin_memory,
        "is_pinned": is_pinned,
        "__cuda_array_interface__": property(array_interface),
    }
    return wanted(torch.Tensor, names)


def factory_patches() -> list[Patch]:
    """Factories that build on the CPU and move: C++ would move below every hook."""
    true_tensor, true_as_tensor, true_asarray = torch.tensor, torch.as_tensor, torch.asarray

    def moved(make: Any, data: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        wish = kwargs.get("device")
        target = card_device(default_devices.CURRENT_DEVICE if wish is None else wish)
        if wish is None and is_virtual(data) and make is not true_tensor:
            target = CUDA
        if target != CUDA:
            if is_virtual(data) and target is not None:
                data = data.to(target)
            return make(data, **kwargs)
        needs_grad = kwargs.pop("requires_grad", False)
        dtype = kwargs.get("dtype")
        if is_virtual(data):
            copy = data.detach().to(dtype=dtype or data.dtype, copy=make is true_tensor)
            return copy.requires_grad_() if needs_grad else copy
        data, kwargs["device"] = _off_card(data), "cpu"
        kwargs.pop("pin_memory", None)
        fresh = make(data, **kwargs).to(CUDA)
        return fresh.requires_grad_() if needs_grad else fresh

    def tensor(data: Any, **kwargs: Any) -> torch.Tensor:
        return moved(true_tensor, _off_card(data, keep=True), kwargs)

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        return moved(true_as_tensor, _off_card(data, keep=True), {"dtype": dtype, "device": device})

    def asarray(obj: Any, **kwargs: Any) -> torch.Tensor:
        return moved(true_asarray, _off_card(obj, keep=True), kwargs)

    names = {"tensor": tensor, "as_tensor": as_tensor, "asarray": asarray}
    return wanted(torch, names)


def _off_card(data: Any, *, keep: bool = False) -> Any:
    """Nested lists with scalars on the card become numbers; a tensor itself stays if `keep`."""
    if is_virtual(data):
        return data if keep else data.cpu()
    if isinstance(data, (list, tuple)) and any(
        is_virtual(item) or isinstance(item, (list, tuple)) for item in data
    ):
        return [item.tolist() if is_virtual(item) else _off_card(item) for item in data]
    return data


def printing_patches(mode: CardMode) -> list[Patch]:
    """Printing shows a copy's values; a real card's scratch memory for printing is not modelled."""
    from torch import _tensor_str

    true_body = _tensor_str._tensor_str

    def body(self: torch.Tensor, indent: int) -> str:
        # Torch prints with every mode off, so the copy cannot be made by .cpu().
        return true_body(mode.values.on_cpu(self) if is_virtual(self) else self, indent)

    return [Patch(_tensor_str, "_tensor_str", body)]
