"""Numba: its device arrays, and those that wait to be freed.

It frees those ten at a time.

Its context has each allocation with its size, and also the bytes that wait to be freed. Neither
exists before a program has used the GPU.
https://github.com/NVIDIA/numba-cuda/blob/v0.30.4/numba_cuda/numba/cuda/cudadrv/driver.py
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.capture.frameworks.framework import Framework, FrameworkReading

_DRIVER = "numba.cuda.cudadrv.driver"


def read(device: int) -> FrameworkReading | None:
    """Sum the bytes of Numba's arrays on a GPU; None without a context."""
    manager = _manager(device)
    if manager is None:
        return None
    driver: Any = sys.modules[_DRIVER]
    used = managed = 0
    for memory in list(manager.allocations.values()):
        kind = type(memory)
        if issubclass(kind, driver.ManagedMemory):
            managed += memory.size
        elif not issubclass(kind, driver.MappedMemory):  # those are the host's
            used += memory.size
    waiting = manager.deallocations._size  # noqa: SLF001 - no other source
    return FrameworkReading(held=used + int(waiting), used=used, managed=managed)


def _manager(device: int) -> Any:
    """Return Numba's memory manager of a GPU; None without a context.

    nbmem must never create a context.
    """
    # Reading other attributes of the driver, or numba.cuda.gpus, starts it.
    known = vars(sys.modules[_DRIVER].driver).get("devices", {}).get(device)
    context = getattr(known, "primary_context", None)
    return getattr(context, "memory_manager", None)


OWNER = Framework(name="numba", modules=("numba.cuda", _DRIVER), read=read)
