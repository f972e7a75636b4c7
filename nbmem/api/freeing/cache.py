"""`free cache`: give back memory that torch has cached."""

from __future__ import annotations

from typing import Any

from nbmem.allocator.recordings.used_private_pools import reconstruct_with_pools
from nbmem.allocator.settings import AllocatorSettings
from nbmem.api.live_tensors import histories
from nbmem.capture.torch_cuda import (
    device_count,
    initialized_torch,
    read_counters,
    torch_with_history,
)
from nbmem.capture.torch_memory.private_pools import pools_in_use
from nbmem.core.session.events import Events


def releasable() -> int:
    """Return the bytes that empty_cache() will give back.

    These are whole free segments, and free pages.

    Segments of pools that a graph or a MemPool uses are left out. CUDA's own pool (cudaMallocAsync)
    reports no segments: there it is the pool's unused bytes.
    """
    torch: Any = initialized_torch()
    total = 0
    if torch is not None and torch_with_history() is None:
        read = [one for one in map(read_counters, range(device_count())) if one is not None]
        return sum(one.reserved - one.allocated for one in read)
    for history in histories():
        release = str(torch.__version__).split("+")[0]
        settings = AllocatorSettings.from_torch(history.settings, release)
        now = history.layout_at_end
        kept = pools_in_use(now.segments.pool.tolist())
        followed = reconstruct_with_pools(now, Events.empty(), settings, now.segments, kept)
        total += int(followed.releasable[0])
    return total


def empty() -> None:
    """Give torch's cached memory back to the driver."""
    torch: Any = initialized_torch()
    if torch is not None:
        torch.cuda.empty_cache()
