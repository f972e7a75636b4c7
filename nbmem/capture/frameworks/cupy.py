"""CuPy: the memory pools of its arrays, by its own counters.

Known limits: memory of `malloc_managed` and of an allocator without a pool is in no counter. An
allocator that allocates from RMM or from torch holds nothing itself, so that no byte is counted
twice. A `MemoryAsyncPool` allocates from CUDA's own pool, and its figures are that pool's. If torch
also allocates from it, they are in torch's counters.
https://github.com/cupy/cupy/blob/v14.2.0/cupy/cuda/memory.pyx
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

from nbmem.capture.frameworks.framework import Framework, FrameworkReading
from nbmem.capture.torch_cuda import allocator_backend


def pools() -> list[Any]:
    """Return the default pool, and the pool of the user's allocator."""
    cupy: Any = sys.modules["cupy"]
    found = [cupy.get_default_memory_pool()]
    chosen = getattr(cupy.cuda.get_allocator(), "__self__", None)
    kinds = (cupy.cuda.MemoryPool, getattr(cupy.cuda, "MemoryAsyncPool", cupy.cuda.MemoryPool))
    if chosen is not None and issubclass(type(chosen), kinds) and chosen is not found[0]:
        found.append(chosen)
    return found


def is_asynchronous() -> bool:
    """Return True if any of its memory comes from CUDA's own pool."""
    return any(map(_takes_from_cudas, pools()))


def _takes_from_cudas(pool: Any) -> bool:
    kind = getattr(sys.modules["cupy.cuda"], "MemoryAsyncPool", None)
    return kind is not None and issubclass(type(pool), kind)


def _torchs(pool: Any) -> bool:
    """Return True if torch's counters include a pool's bytes.

    Its cudaMallocAsync backend allocates from that pool as well.
    """
    return _takes_from_cudas(pool) and allocator_backend() == "cudaMallocAsync"


def read(device: int) -> FrameworkReading | None:
    """Read CuPy's pools on a GPU.

    A pool returns the figures of the thread's current device.

    None without a driver, as with a virtual card.
    """
    cupy: Any = sys.modules["cupy"]
    if not cupy.is_available():
        return None
    with _current(device):
        found = [(pool.used_bytes(), pool.total_bytes()) for pool in pools() if not _torchs(pool)]
    return FrameworkReading(
        held=sum(held for _, held in found), used=sum(used for used, _ in found)
    )


def give_back(device: int) -> None:
    """Free the blocks of CuPy's pools on a GPU that no array uses."""
    with _current(device):
        for pool in pools():
            pool.free_all_blocks()


def _current(device: int) -> Any:
    """Return a context in which a GPU is current, unless it is already."""
    cupy: Any = sys.modules["cupy"]
    there = cupy.cuda.runtime.getDevice() == device
    return nullcontext() if there else cupy.cuda.Device(device)


OWNER = Framework(name="cupy", modules=("cupy", "cupy.cuda"), read=read, give_back=give_back)
