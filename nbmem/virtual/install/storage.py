"""Storages of virtual tensors: their address, and copies of them for deepcopy, save and load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.install.moving import card_device
from nbmem.virtual.install.patches import Patch, wanted
from nbmem.virtual.tensors import CUDA

if TYPE_CHECKING:
    from nbmem.virtual.dispatch import CardMode

_Base: Any = _C.StorageBase
_device = _Base.device.__get__


def storage_patches(mode: CardMode) -> list[Patch]:
    """Attributes and methods of torch.UntypedStorage."""
    true_to = torch.UntypedStorage.to
    true_cpu = torch.UntypedStorage.cpu
    true_clone = torch.UntypedStorage.clone

    def on_card(self: torch.UntypedStorage) -> bool:
        return bool(_device(self).type == "lazy")

    def device(self: torch.UntypedStorage) -> torch.device:
        return CUDA if on_card(self) else _device(self)

    def data_ptr(self: torch.UntypedStorage) -> int:
        if not on_card(self):
            return _Base.data_ptr(self)
        block = mode.storages.of_storage(self)
        return 0 if block is None else block.addr

    def allocate(nbytes: int) -> torch.UntypedStorage:
        return torch.empty(nbytes, dtype=torch.uint8, device=CUDA).untyped_storage()

    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        if not on_card(self):
            return true_clone(self)
        copy = allocate(self.nbytes())
        mine, its = mode.storages.of_storage(self), mode.storages.of_storage(copy)
        if mine is not None and its is not None and mine.twin is not None:
            its.twin = true_clone(mine.twin)
        return copy

    def cpu(self: torch.UntypedStorage) -> torch.UntypedStorage:
        if not on_card(self):
            return true_cpu(self)
        block = mode.storages.of_storage(self)
        if block is not None and block.twin is not None:
            return true_clone(block.twin)
        return torch.zeros(self.nbytes(), dtype=torch.uint8, device="cpu").untyped_storage()

    def cuda(self: torch.UntypedStorage, *_args: Any, **_kwargs: Any) -> torch.UntypedStorage:
        if on_card(self):
            return self
        copy = allocate(self.nbytes())
        block = mode.storages.of_storage(copy)
        if block is not None and self.nbytes() <= 64:
            block.twin = true_clone(self)
        return copy

    def to(self: torch.UntypedStorage, *, device: Any, **kwargs: Any) -> torch.UntypedStorage:
        target = card_device(device)
        if target == CUDA:
            return cuda(self)
        return cpu(self) if on_card(self) else true_to(self, device=target, **kwargs)

    names = {
        "device": property(device),
        "data_ptr": data_ptr,
        "clone": clone,
        "cpu": cpu,
        "cuda": cuda,
        "to": to,
    }
    return wanted(torch.UntypedStorage, names)
