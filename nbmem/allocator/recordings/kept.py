"""Free memory of private pools that are in use: empty_cache() gives none of it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.follow import follow
from nbmem.core.events import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.events import Events, Segments

    Ints = NDArray[np.int64]


def kept_curve(start: Layout, events: Events, kept: Segments, settings: AllocatorSettings) -> Ints:
    """What `Followed.releasable` has of pools that are in use, at every moment; bytes.

    Events do not name a pool, segments do: what lies where such a pool's segments are at the end is
    taken for the pool's from the first event on.

    Args:
        start: Every segment and block before the first event.
        events: What happened.
        kept: The segments of such pools after the last one.
        settings: The settings in force.
    """
    if not len(kept):
        return np.zeros(len(events) + 1, np.int64)
    inside = _in(kept, events.addr)
    part = follow(
        Layout(
            segments=start.segments[_in(kept, start.segments.addr)],
            blocks=start.blocks[_in(kept, start.blocks.addr)],
        ),
        events[inside],
        settings,
    )
    curve: Ints = part.releasable[np.concatenate([[0], np.cumsum(inside)])]
    return curve


def _in(segments: Segments, addr: Ints) -> NDArray[np.bool_]:
    """Which addresses lie in one of some segments, which are sorted by address."""
    row = np.searchsorted(segments.addr, addr, side="right") - 1
    found: NDArray[np.bool_] = (row >= 0) & (addr < segments.addr[row] + segments.size[row])
    return found
