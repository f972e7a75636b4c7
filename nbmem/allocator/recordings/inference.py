"""Infer pools, empty_cache() calls and the limit from recorded events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.rounding import LARGE_STEP, segment_bytes
from nbmem.core.session.events import TAKES, Action

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import MemoryCurves
    from nbmem.allocator.recordings.recording import CardRecording
    from nbmem.allocator.settings import AllocatorSettings

LIKELY_TOTAL = 80 << 30
"""Assumed bytes of a card that the file does not name: they limit virtual ranges and guesses."""


def emptied_by_user(recording: CardRecording) -> frozenset[int]:
    """Return the events inside torch.cuda.empty_cache(), by their stacks."""
    inside = [any(frame.function == "empty_cache" for frame in stack) for stack in recording.stacks]
    found = np.flatnonzero(np.append(inside, [False])[recording.events.stack])
    return frozenset(found.tolist())


def pools_of(recording: CardRecording) -> dict[int, int]:
    """Infer the private pools of allocations from the segments at the end.

    The pool of a segment that was released again is not known.
    """
    end = recording.end
    if end is None or not end.segments.pool.any():
        return {}
    events = recording.events
    private = end.segments[end.segments.pool != 0]
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    row = np.searchsorted(private.addr, events.addr[allocs], "right") - 1
    inside = (row >= 0) & (events.addr[allocs] < (private.addr + private.size)[row])
    taken = np.isin(events.action, TAKES)
    made = {
        int(addr): int(np.flatnonzero(taken & (events.addr == addr))[-1])
        for addr in private.addr
        if (taken & (events.addr == addr)).any()
    }
    begun = np.array([made.get(int(addr), -1) for addr in private.addr])
    inside &= allocs > begun[row]
    return dict(zip(allocs[inside].tolist(), private.pool[row[inside]].tolist(), strict=True))


def limit_bounds(
    recording: CardRecording, followed: MemoryCurves, settings: AllocatorSettings
) -> tuple[int, int]:
    """Return the bounds of the limit in bytes that a memory fraction sets.

    It is at least the highest reserved bytes. If an OOM left memory on the card, the limit is less
    than the reserved bytes and the segment of that request.
    """
    events = recording.events
    least = int(followed.reserved.max())
    most = recording.total_bytes or LIKELY_TOTAL
    for index in np.flatnonzero(events.action == Action.OOM).tolist():
        wanted = segment_bytes(int(events.size[index]), settings.large_segment_size)
        # The address of an OOM event is the card's free bytes.
        if int(events.addr[index]) >= wanted + LARGE_STEP:
            most = min(most, int(followed.reserved[index]) + wanted - 1)
    return least, max(least, most)
