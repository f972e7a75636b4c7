"""Pinned CPU tensors: ordinary memory that reports itself as pinned.

`PinnedPool` is torch's caching allocator of pinned memory, in figures only. Blocks have the size of
a power of two and stay cached when they are free.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/core/CachingHostAllocator.h
Known limit: a block is free at once; on a card it waits for the copies that still read from it.
"""

from __future__ import annotations

import collections
import weakref
from typing import TYPE_CHECKING, Any

import torch

from nbmem.allocator.statistics import Counter
from nbmem.virtual.devices import cpp_device

if TYPE_CHECKING:
    import threading


class PinnedPool:
    """A model of the pinned memory pool; no memory is pinned."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock  # a tensor may end while another one is pinned
        self._free: collections.Counter[int] = collections.Counter()
        self._levels = {
            name: Counter()
            for name in ("allocations", "active_requests", "allocated_bytes", "active_bytes")
        }
        self._made = self._given_up = 0

    def take(self, size: int) -> int:
        """Allocate a block for `size` bytes; return the block's bytes."""
        block = 1 << max(size - 1, 0).bit_length()
        with self._lock:
            if self._free[block]:
                self._free[block] -= 1
            else:
                self._made += 1
                self._move(("allocations", "allocated_bytes"), block)
            self._move(("active_requests", "active_bytes"), block)
        return block

    def give(self, block: int) -> None:
        """Free a block into the cache, for the next request of its size."""
        with self._lock:
            self._free[block] += 1
            self._move(("active_requests", "active_bytes"), -block)

    def empty_cache(self) -> None:
        """Release all cached blocks."""
        with self._lock:
            for block in self._free.elements():
                self._given_up += 1
                self._move(("allocations", "allocated_bytes"), -block)
            self._free.clear()

    def statistics(self) -> dict[str, object]:
        """Return statistics as torch._C._cuda_hostMemoryStats does.

        All times are 0.
        """
        time = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
        return {
            "num_host_alloc": self._made,
            "num_host_free": self._given_up,
            **{name: level.to_dict() for name, level in self._levels.items()},
            "host_alloc_time": dict(time),
            "host_free_time": dict(time),
        }

    def reset_peaks(self) -> None:
        """Reset peaks to the current values."""
        for level in self._levels.values():
            level.peak = level.current

    def reset_accumulated(self) -> None:
        """Reset the totals of allocations and frees to 0."""
        self._made = self._given_up = 0
        for level in self._levels.values():
            level.allocated = level.freed = 0

    def _move(self, names: tuple[str, str], block: int) -> None:
        """Add one block to some counters, or remove it if `block` is negative.

        The first name counts blocks, the second one bytes.
        """
        for name, count in zip(names, (1, abs(block)), strict=True):
            level = self._levels[name]
            (level.add if block > 0 else level.remove)(count)


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
        if isinstance(tensor, torch.Tensor) and cpp_device(tensor).type == "cpu":
            storage = tensor.untyped_storage()
            if storage not in self._storages and storage.nbytes():
                block = self.pool.take(storage.nbytes())
                weakref.finalize(storage, self.pool.give, block).atexit = False
            self._storages.add(storage)
        return tensor

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in pinned or registered memory."""
        dense = tensor.layout is torch.strided and cpp_device(tensor).type == "cpu"
        if not dense:
            return False
        if self._storages and tensor.untyped_storage() in self._storages:
            return True
        at = _data_ptr(tensor) if self._registered else 0
        return any(start <= at < start + size for start, size in self._registered.items())
