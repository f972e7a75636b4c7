"""Compute the layout before recorded events from the one after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.address_ranges import AddressRanges
from nbmem.allocator.rounding import SMALL_LIMIT, round_sizes
from nbmem.core.session.events import Action, Blocks, BlockState, Events, Layout

if TYPE_CHECKING:
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.arrays import Ints, Mask

_MAX_LONE_COMPLETED_FREES = 3
"""With more completed frees than this and no request, the recording leaves requests out."""
_SEGMENT_ACTIONS = (
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
    Action.SEGMENT_UNMAP,
)


def undo_with_notes(
    final: Layout, events: Events, settings: AllocatorSettings
) -> tuple[Layout, tuple[str, ...]]:
    """Compute the layout before the first event, with notes on its gaps.

    A block that is live at the end and has no events was live at the start, unchanged. A block
    whose first event is a free was live, too, but only its requested bytes are recorded. In the
    large pool a block may be up to 1 MiB larger than its request needs. That shows only where a
    neighbour begins. Everything else was free; free neighbours are always merged.

    Args:
        final: Every segment and block after the last event.
        events: What happened in between.
        settings: The settings in force.
    """
    ranges = AddressRanges(final.segments)
    for row in np.flatnonzero(np.isin(events.action, _SEGMENT_ACTIONS))[::-1].tolist():
        ranges.take_back(
            int(events.action[row]),
            int(events.addr[row]),
            int(events.size[row]),
            int(events.stream[row]),
        )
    segments = ranges.segments()
    addr, requested, state, stack, exact = _blocks_before(final, events)
    starts, ends = segments.addr, segments.addr + segments.size
    home = np.searchsorted(starts, addr, "right") - 1
    inside = (home >= 0) & (addr < ends[home]) if len(starts) else np.zeros(len(addr), np.bool_)
    lost = int(len(addr) - inside.sum())
    addr, requested, state, stack = addr[inside], requested[inside], state[inside], stack[inside]
    exact, home = exact[inside], home[inside]
    size = np.where(exact > 0, exact, round_sizes(requested, settings.roundup_power2_divisions))
    # Free bytes up to the next live block, or to the end of the segment.
    limit = np.minimum(np.append(addr[1:], np.int64(2**62)), ends[home])
    unsure = (
        (exact == 0)
        & (size > SMALL_LIMIT)
        & (segments.expandable[home] == 0)
        & (not settings.expandable_segments)
    )
    if settings.max_split_size is not None:
        # Oversize blocks are never split and serve no smaller request: they fill their segment.
        oversize = unsure & (size >= settings.max_split_size)
        size = np.where(oversize, ends[home] - addr, size)
        unsure &= ~oversize
    size, guessed = _with_surplus(addr, size, limit, unsure, events)
    size = np.minimum(size, limit - addr)
    blocks = tiled(segments.addr, segments.size, addr, size, (requested, state, stack))
    notes = []
    if guessed:
        notes.append(
            f"{guessed} blocks from before the recording may each be up to 1 MiB larger than shown."
        )
    if lost:
        notes.append(f"{lost} blocks from before the recording lie in no known segment.")
    return Layout(segments=segments, blocks=blocks), tuple(notes)


def _blocks_before(final: Layout, events: Events) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Return the blocks in use before the first event, as columns.

    The columns are address, requested bytes, state, stack and block bytes, which are 0 if
    unsure.
    """
    block_events = np.flatnonzero(events.action <= Action.FREE_COMPLETED)
    known, first = np.unique(events.addr[block_events], return_index=True)
    first = block_events[first]
    freed = first[events.action[first] != Action.ALLOC]
    was_pending = events.action[freed] == Action.FREE_COMPLETED
    if _skips_requests(events):
        was_pending = np.zeros(len(freed), bool)
    state = np.where(was_pending, BlockState.PENDING, BlockState.ALLOCATED)
    held = final.blocks.state != BlockState.INACTIVE
    old = final.blocks[held & ~np.isin(final.blocks.addr, known)]
    addr = np.concatenate([events.addr[freed], old.addr])
    order = np.argsort(addr, kind="stable")
    nothing = np.zeros(len(freed), np.int64)
    return (
        addr[order],
        np.concatenate([events.size[freed], old.requested])[order],
        np.concatenate([state, old.state]).astype(np.int64)[order],
        np.concatenate([nothing - 1, old.stack])[order],
        np.concatenate([nothing, old.size])[order],
    )


def _skips_requests(events: Events) -> bool:
    """Return whether the recording leaves FREE_REQUESTED out.

    The option skip_actions can do that. A first FREE_COMPLETED then does not mean that the block
    was pending. A short window may hold just the ends of pending blocks.
    """
    counts = np.bincount(events.action, minlength=len(Action))
    return bool(
        counts[Action.FREE_REQUESTED] == 0
        and counts[Action.FREE_COMPLETED] > _MAX_LONE_COMPLETED_FREES
    )


def _with_surplus(
    addr: Ints, size: Ints, limit: Ints, unsure: Mask, events: Events
) -> tuple[Ints, int]:
    """Enlarge large blocks by a remainder not split off, where it shows.

    No piece of a large segment is as small as 1 MiB, so a smaller gap belongs to the block before
    it. Allocations at higher addresses during its lifetime show its end, too. Returns the sizes and
    how many remain a guess.
    """
    size = size.copy()
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    order = np.argsort(events.addr[allocs], kind="stable")
    allocs = allocs[order]
    places = events.addr[allocs]
    ends = np.flatnonzero(events.action == Action.FREE_COMPLETED)
    ended, first = np.unique(events.addr[ends], return_index=True)
    death = dict(zip(ended.tolist(), ends[first].tolist(), strict=True))
    guessed = 0
    for row in np.flatnonzero(unsure).tolist():
        end = addr[row] + size[row]
        gap = limit[row] - end
        if gap <= SMALL_LIMIT:
            size[row] += max(gap, 0)
            continue
        low, high = np.searchsorted(places, (end, end + SMALL_LIMIT + 1))
        near = allocs[low:high]
        near = near[near < death.get(int(addr[row]), len(events))]
        if len(near):
            size[row] = int(events.addr[near].min()) - addr[row]
        else:
            guessed += 1
    return size, guessed


def tiled(
    starts: Ints, sizes: Ints, addr: Ints, size: Ints, rest: tuple[Ints, Ints, Ints]
) -> Blocks:
    """Fill the gaps between blocks in use with free blocks.

    Args:
        starts: Addresses of the segments, ascending.
        sizes: Their bytes.
        addr: Addresses of the blocks in use, ascending.
        size: Their bytes.
        rest: Their requested bytes, states and stacks.
    """
    rows = []
    requested, state, stack = (column.tolist() for column in rest)
    used = list(zip(addr.tolist(), size.tolist(), requested, state, stack, strict=True))
    at = 0
    for start, length in zip(starts.tolist(), sizes.tolist(), strict=True):
        place, end = start, start + length
        while at < len(used) and used[at][0] < end:
            row = used[at]
            if row[0] > place:
                rows.append((place, row[0] - place, 0, int(BlockState.INACTIVE), -1))
            rows.append(row)
            place = row[0] + row[1]
            at += 1
        if place < end:
            rows.append((place, end - place, 0, int(BlockState.INACTIVE), -1))
    return Blocks.from_rows(rows)
