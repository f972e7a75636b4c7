"""Compute memory curves from allocations and segment events, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import GIVES_BACK, TAKES, Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.allocator.recordings.free_memory import FreeMemory
    from nbmem.core.session.events import Events, Layout

    Ints = NDArray[np.int64]

_SIGN = np.zeros(len(Action), np.int64)
_SIGN[[*TAKES]] = 1
_SIGN[[*GIVES_BACK]] = -1


def curves_of(
    start: Layout, events: Events, allocations: Allocations, pieces: FreeMemory
) -> dict[str, Ints]:
    """Compute the six memory curves of a recording, by name."""
    count = len(events)
    change = _SIGN[events.action] * events.size
    reserved = _curve(int(start.segments.size.sum()), change)
    plain = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    fixed = start.segments.expandable == 0
    inside = _in_segments(allocations, pieces)
    reserved_plain = _curve(int(start.segments.size[fixed].sum()), np.where(plain, change, 0))
    whole = _at(pieces.whole_changes, count)
    pages = _at(pieces.page_changes, count)
    whole_start = pieces.whole_at_start
    active = _live_sum(allocations, allocations.block, allocations.completed_at, count)
    active_plain = _live_sum(
        allocations, allocations.block * inside, allocations.completed_at, count
    )
    releasable_plain = _curve(whole_start, whole)
    split = reserved_plain - active_plain - releasable_plain
    return {
        "allocated": _live_sum(allocations, allocations.block, allocations.freed, count),
        "active": active,
        "requested": _live_sum(allocations, allocations.requested, allocations.completed_at, count),
        "reserved": reserved,
        "releasable": releasable_plain + _curve(pieces.pages_at_start, pages),
        "inactive_split": np.maximum(split, 0),
    }


def _curve(start: int, change: Ints) -> Ints:
    return np.concatenate([[start], start + np.cumsum(change)]).astype(np.int64)


def _at(changes: list[tuple[int, int]], count: int) -> Ints:
    sums = np.zeros(count, np.int64)
    if changes:
        where, amount = np.array(changes, np.int64).T
        np.add.at(sums, where, amount)
    return sums


def _live_sum(allocations: Allocations, amount: Ints, ended: Ints, count: int) -> Ints:
    """Sum `amount` over the live allocations before each event."""
    change = np.zeros(count, np.int64)
    born = allocations.allocated_at >= 0
    change[allocations.allocated_at[born]] = amount[born]
    over = (ended >= 0) & (ended < count)
    np.subtract.at(change, ended[over], amount[over])
    return _curve(int(amount[~born & (ended >= 0)].sum()), change)


def _in_segments(allocations: Allocations, pieces: FreeMemory) -> NDArray[np.bool_]:
    """Return a mask of the allocations that lie in a cudaMalloc segment.

    The others lie in a virtual range or in no known segment.
    """
    inside = ~pieces.in_ranges(allocations.addr)
    if pieces.orphans:
        inside[np.fromiter(pieces.orphans, np.int64)] = False
    return inside
