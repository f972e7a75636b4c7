"""RMM: the resource of a card and those below it, as far as they count.

Of a chain `Statistics(Pool(Cuda))` the first that counts says what is in use, a pool what is held.
Without either nothing is known: RMM keeps no figures of its own. What comes from a managed resource
is told apart, since it may be on the card or in the host's memory.
https://github.com/rapidsai/rmm/tree/main/python/rmm/rmm/pylibrmm/memory_resource
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.probes.owners.owner import Owner, OwnerReading

_DEEPEST = 20
_HOST = {"PinnedHostMemoryResource", "SystemMemoryResource"}
_MANAGED = {"ManagedMemoryResource", "SamHeadroomMemoryResource"}


def read(device: int) -> OwnerReading | None:
    """What the card's resource says; None where none of its parts counts."""
    mr: Any = sys.modules["rmm.mr"]
    resource, used, held = mr.get_per_device_resource(device), None, None
    for _ in range(_DEEPEST):
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
        return OwnerReading(held=0, used=0, managed=held)
    return OwnerReading(held=held, used=used)


def _counted(kind: str, resource: Any) -> Any:
    """Bytes in use by an adaptor that counts them; None by any other."""
    if kind == "StatisticsResourceAdaptor":
        counts = resource.allocation_counts
        # Before release 24.04 it was a dictionary.
        return counts["current_bytes"] if type(counts) is dict else counts.current_bytes
    if kind in {"TrackingResourceAdaptor", "LimitingResourceAdaptor"}:
        return resource.get_allocated_bytes()
    return None


OWNER = Owner(name="rmm", modules=("rmm", "rmm.mr"), read=read)
