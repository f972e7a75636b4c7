"""Reconstruct memory over time from recorded events and addresses.

The recorded addresses are trusted, so no search is needed. A block always comes from the front of a
free piece. So the whole state is two dictionaries of free pieces, by start and by end.
Block sizes follow from the split rule.

`curves_of` computes memory curves from allocations and segment events, as columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.free_memory import FreeMemory
from nbmem.allocator.rounding import round_sizes, split_thresholds
from nbmem.core.session.events import GIVES_BACK, TAKES, Action, BlockState, Columns, Events, Layout

if TYPE_CHECKING:
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.arrays import Ints, Mask

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


def _in_segments(allocations: Allocations, pieces: FreeMemory) -> Mask:
    """Return a mask of the allocations that lie in a cudaMalloc segment.

    The others lie in a virtual range or in no known segment.
    """
    inside = ~pieces.in_ranges(allocations.addr)
    if pieces.orphans:
        inside[np.fromiter(pieces.orphans, np.int64)] = False
    return inside


_ALLOC = int(Action.ALLOC)
_FREE_REQUESTED = int(Action.FREE_REQUESTED)
_FREE_COMPLETED = int(Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocations(Columns):
    """Allocations that were live in the window, in order of allocation.

    Attributes:
        allocated_at: Event index of its ALLOC; -1 if it was live before the window.
        freed: Event index of its FREE_REQUESTED; n (the number of events) if never, -1 if before.
        completed_at: Event index of its FREE_COMPLETED; n if never.
        addr: Address.
        requested: Requested bytes.
        block: Bytes of the block.
        stream: The stream that it was allocated on.
        stack: Index into the session's stacks, or -1.
    """

    allocated_at: Ints
    freed: Ints
    completed_at: Ints
    addr: Ints
    requested: Ints
    block: Ints
    stream: Ints
    stack: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryCurves:
    """Memory at every moment, reconstructed from recorded events.

    Each curve has n + 1 values: index i is before event i, index n after the last one; bytes.

    Attributes:
        allocated: In allocated blocks.
        active: In allocated and pending blocks.
        requested: Requested bytes of active blocks.
        reserved: Held from the driver.
        releasable: What empty_cache() would give back at that moment.
        inactive_split: Free pieces of cudaMalloc segments in use, as torch counts them.
        allocations: Every allocation that was live in the window.
        notes: Contradictions in the recording, one sentence for each kind.
    """

    allocated: Ints
    active: Ints
    requested: Ints
    reserved: Ints
    releasable: Ints
    inactive_split: Ints
    allocations: Allocations
    notes: tuple[str, ...]


def reconstruct(start: Layout, events: Events, settings: AllocatorSettings) -> MemoryCurves:
    """Reconstruct block sizes, lifetimes and curves from recorded events.

    Args:
        start: Every segment and block before the first event.
        events: What happened.
        settings: The settings in force. Changes during the window are not in the events: they show
            as contradictions, which are repaired and noted.

    The rule by which a block is split is the same in all releases of torch that are supported.
    """
    count = len(events)
    pieces = FreeMemory(start, settings)
    held = np.flatnonzero(start.blocks.state != BlockState.INACTIVE)
    blocks: list[int] = start.blocks.size[held].tolist()
    pending = start.blocks.state[held] == BlockState.PENDING
    freed: list[int] = np.where(pending, -1, count).tolist()
    died: list[int] = [count] * len(held)
    pieces.track(start.blocks.addr[held].tolist(), blocks, freed, died)
    _run(pieces, events, settings, blocks, freed, died)
    born = np.flatnonzero(events.action == Action.ALLOC)
    old = start.blocks[held]
    segment = np.searchsorted(start.segments.addr, old.addr, "right") - 1
    streams = start.segments.stream[segment] if len(start.segments) else np.zeros(len(held), int)
    allocations = Allocations(
        allocated_at=np.concatenate([np.full(len(held), -1, np.int64), born]),
        freed=np.array(freed, np.int64),
        completed_at=np.array(died, np.int64),
        addr=np.concatenate([old.addr, events.addr[born]]),
        requested=np.concatenate([old.requested, events.size[born]]),
        block=np.array(blocks, np.int64),
        stream=np.concatenate([streams, events.stream[born]]),
        stack=np.concatenate([old.stack, events.stack[born]]),
    )
    curves = curves_of(start, events, allocations, pieces)
    return MemoryCurves(**curves, allocations=allocations, notes=pieces.notes())


def _run(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - one pass, all names local
    pieces: FreeMemory,
    events: Events,
    settings: AllocatorSettings,
    blocks: list[int],
    freed: list[int],
    died: list[int],
) -> None:
    """Process all events in one pass.

    Local names without calls process a million events in about a second.
    """
    count = len(events)
    size_at, start_at, segments = pieces.size_at, pieces.start_at, pieces.segments
    live = pieces.live
    whole_changes = pieces.whole_changes
    mapped = pieces.has_ranges(events)
    rounded = events.size
    if settings.rounds:
        rounded = round_sizes(events.size, settings.roundup_power2_divisions)
    least = split_thresholds(
        rounded, settings.max_split_size, expandable=settings.expandable_segments
    )
    rows = zip(
        range(count),
        events.action.tolist(),
        events.addr.tolist(),
        events.size.tolist(),
        rounded.tolist(),
        least.tolist(),
        strict=True,
    )
    going = True
    while going:
        try:
            for i, action, addr, size, wanted, threshold in rows:
                if action == _ALLOC:
                    piece = size_at.pop(addr, 0)
                    if piece < wanted:
                        blocks.append(pieces.repair_allocation(i, addr, piece, wanted))
                    else:
                        end = addr + piece
                        rest = piece - wanted
                        if rest >= threshold:
                            blocks.append(wanted)
                            after = addr + wanted
                            size_at[after] = rest
                            start_at[end] = after
                            if mapped:
                                pieces.pages_change(i, addr, piece, after, rest)
                        else:
                            blocks.append(piece)
                            del start_at[end]
                            if mapped:
                                pieces.pages_change(i, addr, piece, addr, 0)
                        if segments.get(addr) == piece:
                            whole_changes.append((i, -piece))
                    live[addr] = len(died)
                    freed.append(count)
                    died.append(count)
                elif action == _FREE_COMPLETED:
                    found = live.pop(addr, None)
                    if found is None:
                        pieces.unknown_frees += 1
                        continue
                    died[found] = i
                    if freed[found] == count:
                        freed[found] = i
                    piece = blocks[found]
                    if found in pieces.orphans:
                        continue
                    end = addr + piece
                    begin = addr
                    before = start_at.get(addr)
                    if before is not None and addr not in segments:
                        del start_at[addr]
                        begin = before
                        won = size_at[begin]
                        piece += won
                        if mapped:
                            pieces.pages_change(i, begin, won, begin, 0)
                    won = size_at.get(end, 0)
                    if won and end not in segments:
                        del size_at[end]
                        if mapped:
                            pieces.pages_change(i, end, won, end, 0)
                        end += won
                        piece += won
                    size_at[begin] = piece
                    start_at[end] = begin
                    if segments.get(begin) == piece:
                        whole_changes.append((i, piece))
                    if mapped:
                        pieces.pages_change(i, begin, 0, begin, piece)
                elif action == _FREE_REQUESTED:
                    found = live.get(addr)
                    if found is None:
                        pieces.unknown_frees += 1
                    else:
                        freed[found] = i
                else:
                    pieces.segment_event(i, action, addr, size)
            going = False
        except KeyError:  # pieces overlap, since the recording contradicts itself: go on behind it
            pieces.tangled += 1
            del blocks[len(died) :]
            if action == _ALLOC:  # each allocation has a row, this one no segment
                pieces.orphans.add(len(died))
                live[addr] = len(died)
                blocks.append(wanted)
                freed.append(count)
                died.append(count)
