"""Pinned CPU tensors: ordinary memory that reports itself as pinned."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import true_device
from nbmem.virtual.tensors.host.pinned_pool import PinnedPool

if TYPE_CHECKING:
    import threading

_data_ptr = torch._C.TensorBase.data_ptr


class Pinned:
    """Live storages that were requested as pinned.

    Attributes:
        pool: What torch's allocator of pinned memory would hold for them.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._storages: weakref.WeakSet[Any] = weakref.WeakSet()
        self._registered: dict[int, int] = {}
        self.pool = PinnedPool(lock)

    def register(self, pointer: int, size: int) -> None:
        """Treat memory at an address as pinned, as cudaHostRegister does."""
        self._registered[pointer] = size

    def unregister(self, pointer: int) -> None:
        """Treat it as ordinary memory again, as cudaHostUnregister does."""
        self._registered.pop(pointer, None)

    def pin(self, tensor: Any) -> Any:
        """Record the storage of a CPU tensor as pinned; return the tensor."""
        if isinstance(tensor, torch.Tensor) and true_device(tensor).type == "cpu":
            storage = tensor.untyped_storage()
            if storage not in self._storages and storage.nbytes():
                block = self.pool.take(storage.nbytes())
                weakref.finalize(storage, self.pool.give, block).atexit = False
            self._storages.add(storage)
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in pinned or registered memory."""
        dense = tensor.layout is torch.strided and true_device(tensor).type == "cpu"
        if not dense:
            return False
        if self._storages and tensor.untyped_storage() in self._storages:
            return True
        at = _data_ptr(tensor) if self._registered else 0
        return any(start <= at < start + size for start, size in self._registered.items())
