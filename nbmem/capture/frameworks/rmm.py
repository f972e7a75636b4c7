"""RMM: the memory resource of a GPU and its upstream resources.

Only resources that count bytes are read.

In a chain `Statistics(Pool(Cuda))` the first counting resource gives the bytes in use, a pool the
bytes held. Without either nothing is known, because RMM has no figures of its own. Bytes of a
managed resource are separate, since they may be on the card or in the host's memory. If torch
allocates from RMM (`rmm.allocators.torch`), RMM's figures are torch's, and are counted only there.
https://github.com/rapidsai/rmm/tree/main/python/rmm/rmm/pylibrmm/memory_resource
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.capture.frameworks.framework import Framework, FrameworkReading
from nbmem.capture.torch_cuda import uses_allocator
from nbmem.capture.validation import whole_bytes
from nbmem.core.runtime.interrupts import reraise_if_from_signal

_MAX_DEPTH = 20
_HOST = {"PinnedHostMemoryResource", "SystemMemoryResource"}
_MANAGED = {"ManagedMemoryResource", "SamHeadroomMemoryResource"}


def read(device: int) -> FrameworkReading | None:
    """Read a GPU's memory resource; None if no part of it counts.

    If torch allocates from RMM, only managed bytes are reported here; None without any.
    """
    reading = _read(device)
    if reading is None or not _is_torchs():
        return reading
    return FrameworkReading(held=0, used=0, managed=reading.managed) if reading.managed else None


def torch_bytes(device: int) -> tuple[int, int] | None:
    """Return used and held bytes of a GPU where torch allocates from RMM.

    None if it does not, and if RMM does not count. Never raises, because it is called in the cell's
    own thread.
    """
    try:
        reading = _read(device) if OWNER.is_loaded and _is_torchs() else None
        if reading is None:
            return None
        held = whole_bytes(reading.managed or reading.held)
        used = held if reading.used is None or reading.managed else whole_bytes(reading.used)
    except Exception as err:  # noqa: BLE001 - another version, or broken
        reraise_if_from_signal(err)
        return None
    return None if held is None or used is None or used > held else (used, held)


def _is_torchs() -> bool:
    """Return True if torch allocates from RMM."""
    border = sys.modules.get("rmm.allocators.torch")
    chosen = getattr(border, "rmm_torch_allocator", None)
    return uses_allocator(getattr(chosen, "_allocator", None))


def _read(device: int) -> FrameworkReading | None:
    mr: Any = sys.modules["rmm.mr"]
    resource, used, held = mr.get_per_device_resource(device), None, None
    for _ in range(_MAX_DEPTH):
        kind = type(resource).__name__
        if used is None:
            used = _counted(kind, resource)
        if held is None and kind == "PoolMemoryResource":
            held = resource.pool_size()
        if not hasattr(type(resource), "get_upstream"):
            break
        resource = resource.get_upstream()
    held = used if held is None else held
    bottom = type(resource).__name__
    if held is None or bottom in _HOST:
        return None
    if bottom in _MANAGED:
        return FrameworkReading(held=0, used=0, managed=held)
    return FrameworkReading(held=held, used=used)


def _counted(kind: str, resource: Any) -> Any:
    """Return the bytes in use by a counting adaptor; None for any other."""
    if kind == "StatisticsResourceAdaptor":
        counts = resource.allocation_counts
        # Before release 24.04 this was a dictionary.
        return counts["current_bytes"] if type(counts) is dict else counts.current_bytes
    if kind in {"TrackingResourceAdaptor", "LimitingResourceAdaptor"}:
        return resource.get_allocated_bytes()
    return None


OWNER = Framework(name="rmm", modules=("rmm", "rmm.mr"), read=read)
