"""`free cache`: what torch has cached and the driver could have."""

from __future__ import annotations

from typing import Any

from nbmem.allocator.recordings.kept import follow_used
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.events import Events
from nbmem.living import histories
from nbmem.probes.cuda import device_count, initialized_torch, read_counters, recorded_torch
from nbmem.probes.pools import kept_pools


def releasable() -> int:
    """Bytes that empty_cache() will give back: whole free segments, and free pages.

    Those of pools that a graph or a MemPool uses stay. Of CUDA's own pool (cudaMallocAsync) no
    segments are known: what it does not use.
    """
    torch: Any = initialized_torch()
    total = 0
    if torch is not None and recorded_torch() is None:
        read = [one for one in map(read_counters, range(device_count())) if one is not None]
        return sum(one.reserved - one.allocated for one in read)
    for history in histories():
        release = str(torch.__version__).split("+")[0]
        settings = AllocatorSettings.from_torch(history.settings, release)
        now = history.layout_at_end
        kept = kept_pools(now.segments.pool.tolist())
        followed = follow_used(now, Events.empty(), settings, now.segments, kept)
        total += int(followed.releasable[0])
    return total


def empty() -> None:
    """Give it back."""
    torch: Any = initialized_torch()
    if torch is not None:
        torch.cuda.empty_cache()
