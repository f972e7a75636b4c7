"""Reconstruct memory where private pools are in use.

empty_cache() releases none of their free memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.follow import MemoryCurves, reconstruct
from nbmem.core.session.events import Events, Layout, Segments

if TYPE_CHECKING:
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.arrays import Ints, Mask


def reconstruct_with_pools(
    start: Layout,
    events: Events,
    settings: AllocatorSettings,
    end: Segments,
    kept_pools: Sequence[int],
) -> MemoryCurves:
    """Reconstruct memory over time where pools in use release nothing.

    Events do not name a pool, segments do. A pool's segments at the end have addresses. Everything
    at these addresses is assigned to the pool from the first event on.

    Args:
        start: Every segment and block before the first event.
        events: What happened.
        settings: The settings in force.
        end: Every segment after the last event.
        kept_pools: The pools (`Segments.pool`) that a graph or a MemPool uses then.
    """
    followed = reconstruct(start, events, settings)
    kept = end[np.isin(end.pool, kept_pools)]
    if not len(kept):
        return followed
    curve = _releasable_in(kept, start, events, settings)
    return dataclasses.replace(followed, releasable=followed.releasable - curve)


def _releasable_in(
    kept: Segments, start: Layout, events: Events, settings: AllocatorSettings
) -> Ints:
    """Return the releasable bytes in some segments at every moment."""
    inside = _in(kept, events.addr)
    part = reconstruct(
        Layout(
            segments=start.segments[_in(kept, start.segments.addr)],
            blocks=start.blocks[_in(kept, start.blocks.addr)],
        ),
        events[inside],
        settings,
    )
    curve: Ints = part.releasable[np.concatenate([[0], np.cumsum(inside)])]
    return curve


def _in(segments: Segments, addr: Ints) -> Mask:
    """Return a mask of the addresses that lie in one of the segments.

    The segments are sorted by address.
    """
    row = np.searchsorted(segments.addr, addr, side="right") - 1
    found: Mask = (row >= 0) & (addr < segments.addr[row] + segments.size[row])
    return found
