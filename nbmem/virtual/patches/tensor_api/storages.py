"""Storages of virtual tensors: address, size and copies.

The copies serve deepcopy, save and load.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import CUDA
from nbmem.virtual.frames import is_recording
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.patches.tensor_api.transfers import card_device, is_card
from nbmem.virtual.tensors.host.recipes import View
from nbmem.virtual.tensors.storages import original_nbytes

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode

_Base: Any = _C.StorageBase
_device = _Base.device.__get__
READERS = (
    "__getitem__", "__setitem__", "__iter__", "tolist", "fill_", "copy_", "byteswap",
    "share_memory_", "_share_fd_cpu_", "_share_filename_cpu_", "_write_file",
)  # fmt: skip

COPIED = frozenset({"__getitem__", "__iter__", "tolist", "_write_file"})
"""Readers that get a copy where the bytes are on a card."""
WRITERS = frozenset({"__setitem__", "fill_", "copy_"})


def storage_patches(mode: CardMode) -> list[Patch]:
    """Return patches of torch.UntypedStorage's attributes and methods."""
    original_to = torch.UntypedStorage.to
    original_cpu = torch.UntypedStorage.cpu
    original_clone = torch.UntypedStorage.clone

    def device(self: torch.UntypedStorage) -> torch.device:
        real = _device(self)
        return CUDA[real.index] if real.type == "lazy" else real

    def data_ptr(self: torch.UntypedStorage) -> int:
        if not _on_card(self):
            if not is_recording(sys._getframe(1)):
                mode.host.write(self)  # other code reads through the address
            return _Base.data_ptr(self)
        block = mode.storages.of_storage(self)
        return 0 if block is None else block.addr

    def allocate(nbytes: int, where: torch.device) -> torch.UntypedStorage:
        return torch.empty(nbytes, dtype=torch.uint8, device=where).untyped_storage()

    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        if not _on_card(self):
            unwritten = mode.host.copy(self)
            return original_clone(self) if unwritten is None else unwritten
        return copy_to(self, device(self))

    def copy_to(self: torch.UntypedStorage, where: torch.device) -> torch.UntypedStorage:
        copy = allocate(self.nbytes(), where)
        mine, its = mode.storages.of_storage(self), mode.storages.of_storage(copy)
        if mine is not None and its is not None and mine.cpu_values is not None:
            its.cpu_values = original_clone(mine.cpu_values)
        return copy

    def cpu(self: torch.UntypedStorage) -> torch.UntypedStorage:
        if not _on_card(self):
            return original_cpu(self)
        block = mode.storages.of_storage(self)
        if block is not None and block.cpu_values is not None:
            return original_clone(block.cpu_values)
        return mode.host.zeros(View(torch.uint8, (self.nbytes(),), (1,), 0)).untyped_storage()

    def cuda(
        self: torch.UntypedStorage,
        device: Any = None,
        non_blocking: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> torch.UntypedStorage:
        del non_blocking
        where = card_device("cuda" if device is None else device)
        if _on_card(self):
            return self if CUDA[_device(self).index] == where else copy_to(self, where)
        copy = allocate(self.nbytes(), where)
        block = mode.storages.of_storage(copy)
        if block is not None and self.nbytes() <= 64:
            block.cpu_values = original_clone(self)
        return copy

    def to(self: torch.UntypedStorage, *, device: Any, **kwargs: Any) -> torch.UntypedStorage:
        target = card_device(device)
        if is_card(target):
            return cuda(self, target)
        return cpu(self) if _on_card(self) else original_to(self, device=target, **kwargs)

    def read(name: str) -> Any:
        """Return a method that reads or writes the bytes themselves."""
        original = getattr(torch.UntypedStorage, name)

        def method(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            if _on_card(self) and name in COPIED:
                return getattr(cpu(self), name)(*args, **kwargs)
            if name in WRITERS and (_on_card(self) or (args and _on_card(args[0]))):
                return _written(mode, self, name, *args)
            for storage in (self, *args):
                if isinstance(storage, torch.UntypedStorage) and not _on_card(storage):
                    mode.host.write(storage)
            return original(self, *args, **kwargs)

        return method

    names = {
        **{name: read(name) for name in READERS if hasattr(torch.UntypedStorage, name)},
        "device": property(device),
        **_sizes(mode),
        "data_ptr": data_ptr,
        "clone": clone,
        "cpu": cpu,
        "cuda": cuda,
        "to": to,
    }
    return patches_of(torch.UntypedStorage, names)


def _written(mode: CardMode, storage: torch.UntypedStorage, name: str, *args: Any) -> Any:
    """Run a method that writes bytes to a card or from one.

    Values of the card's storage that were known are unknown afterwards.
    """
    if not _on_card(storage):
        return getattr(storage, name)(args[0].cpu())
    if name == "copy_" and args[0].nbytes() != storage.nbytes():
        raise RuntimeError(
            f"size does not match, self was {storage.nbytes()} bytes but src was "
            f"{args[0].nbytes()} bytes"
        )
    block = mode.storages.of_storage(storage)
    if block is not None:
        block.forget_values()
    return None if name == "__setitem__" else storage


def _sizes(mode: CardMode) -> dict[str, Any]:
    """Return the methods that read or change a storage's size.

    `resize_` changes it without C++; FSDP frees memory so.
    """
    original_resize = torch.UntypedStorage.resize_

    def nbytes(self: torch.UntypedStorage) -> Any:
        block = mode.storages.of_storage(self) if _on_card(self) else None
        if block is None or block.resized is None:
            return original_nbytes(
                self
            )  # a symbol's as it is: as a number it would be this one alone
        return block.resized

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if _on_card(self):
            mode.storages.resize(self, int(size))
            return self
        mode.host.write(self)
        return original_resize(self, size)

    return {"nbytes": nbytes, "size": nbytes, "__len__": nbytes, "resize_": resize_}


def _on_card(self: Any) -> bool:
    return isinstance(self, torch.UntypedStorage) and bool(_device(self).type == "lazy")
