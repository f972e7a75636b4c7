"""Map the allocator's segments and blocks at any moments.

A tiling is how blocks and gaps divide one segment. A training loop repeats a few hundred tilings.
So each is computed and written once, and a segment has a list of its tilings over time: 2 to 30 kB
for 1,500 moments. Tilings are compared by the XOR of their blocks' hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.address_ranges import AddressRanges
from nbmem.allocator.rounding import SMALL_SEGMENT
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.session.events import Action, Columns
from nbmem.report.exploration import (
    GONE,
    MIXED,
    PENDING,
    RELEASABLE,
    STUCK,
    PoolHistory,
    PoolSegment,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.ledger.card_ledger import CardLedger

PIXEL_ROWS = 8000
"""Parts of the pool that a picture can show separately."""
BATCH = 100_000
"""Blocks that are cut at once, to limit memory use."""
_SEGMENT_ACTIONS = (
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
    Action.SEGMENT_UNMAP,
)

SegmentRow = tuple[int, int, int, int, int, int]
"""One row of Segments: address, bytes, stream, small, expandable, pool."""


def pool_history(card_ledger: CardLedger, positions: Ints, most: int | None = None) -> PoolHistory:
    """Lay out what torch held from the driver at some moments.

    The result is empty for the host, which has no pool.

    Args:
        card_ledger: The card's ledger.
        positions: The moments, ascending.
        most: Limit on pieces in all tilings together: adjacent narrow pieces are merged into a
            mixed piece, wider ones if that is not enough. None to merge nothing.
    """
    if card_ledger.trace.info.is_host:  # the host has no segments to draw
        return PoolHistory(event=positions, segments=(), tilings=(), states=())
    ranges = _segment_ranges(card_ledger, positions)
    tilings = _Tilings(card_ledger, _blocks(card_ledger, positions), len(positions))
    states = tuple(tuple(tilings.over(row, inside)) for row, inside in ranges.items())
    highest = int(card_ledger.reserved[positions].max(initial=0))
    least = 0 if most is None else highest // PIXEL_ROWS
    tiles = tilings.compute_all(least)
    while most is not None and least < highest and sum(map(len, tiles)) > most:
        least = 4 * least + 1
        tiles = tilings.compute_all(least)
    return PoolHistory(
        event=positions,
        segments=tuple(
            PoolSegment(
                size=size, small=bool(small), expandable=bool(expandable), stream=stream, pool=pool
            )
            for _, size, stream, small, expandable, pool in ranges
        ),
        states=states,
        tilings=tuple(tiles),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Blocks(Columns):
    """Blocks as rectangles of addresses and moments, by address.

    Attributes:
        addr: Address.
        size: Bytes.
        kind: Its category; plus PENDING if it is freed, but a stream still uses it.
        first: The first moment at which it existed.
        last: The first moment at which it no longer existed.
    """

    addr: Ints
    size: Ints
    kind: Ints
    first: Ints
    last: Ints


def _blocks(card_ledger: CardLedger, positions: Ints) -> _Blocks:
    """Return the blocks that exist at one of the positions, by address.

    A freed block that waits for a stream is a separate row.
    """
    a = card_ledger.allocations
    allocated, freed, completed = (
        np.searchsorted(positions, events, side="right")
        for events in (a.allocated_at, a.freed, a.completed_at)
    )
    used, waits = np.flatnonzero(allocated < freed), np.flatnonzero(freed < completed)
    rows = np.concatenate([used, waits])
    kind = card_ledger.category[rows].astype(np.int64)
    kind[len(used) :] += PENDING
    found = _Blocks(
        addr=a.addr[rows],
        size=a.block[rows],
        kind=kind,
        first=np.concatenate([allocated[used], freed[waits]]),
        last=np.concatenate([freed[used], completed[waits]]),
    )
    return found[np.argsort(found.addr, kind="stable")]


def _segment_ranges(
    card_ledger: CardLedger, positions: Ints
) -> dict[SegmentRow, list[tuple[int, int]]]:
    """Map each segment to the ranges of moments at which it existed.

    Segments that exist at the end come first.
    """
    events = card_ledger.trace.events
    segments = AddressRanges(card_ledger.trace.end.segments)
    changes = np.flatnonzero(np.isin(events.action, _SEGMENT_ACTIONS))
    before, first = np.unique(np.searchsorted(changes, positions), return_index=True)
    ranges: dict[SegmentRow, list[tuple[int, int]]] = {}
    left, end = len(changes), len(positions)
    for count, begin in zip(before.tolist()[::-1], first.tolist()[::-1], strict=True):
        for row in changes[count:left].tolist()[::-1]:  # back in time
            segments.take_back(
                int(events.action[row]),
                int(events.addr[row]),
                int(events.size[row]),
                int(events.stream[row]),
            )
        columns = (column.tolist() for _, column in segments.segments().columns())
        for segment in zip(*columns, strict=True):
            inside = ranges.setdefault(segment, [])
            if inside and inside[0][0] == end:
                inside[0] = (begin, inside[0][1])
            else:
                inside.insert(0, (begin, end))
        left, end = count, begin
    return ranges


class _Tilings:
    """The distinct tilings of segments, each computed once.

    A training loop repeats them in every step.
    """

    def __init__(self, card_ledger: CardLedger, blocks: _Blocks, moments: int) -> None:
        settings = AllocatorSettings.from_torch(
            card_ledger.trace.settings, card_ledger.trace.release
        )
        self._large = settings.large_segment_size
        self._kept_pools = frozenset(card_ledger.trace.kept_pools)
        self._blocks = blocks
        self._moments = moments
        self._index: dict[tuple[int, int, int], int] = {}
        self._rows: list[Ints] = []
        self._starts: list[int] = []

    def over(self, row: SegmentRow, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield (moment, tiling) wherever the tiling of a segment changes."""
        addr, size, _, small, expandable, pool = row
        granule = (SMALL_SEGMENT if small else self._large) if expandable else 0
        if pool in self._kept_pools:
            granule = 2 * size  # no page of that size is free: nothing is released to the driver
        low, high = map(int, np.searchsorted(self._blocks.addr, [addr, addr + size]))
        inside = self._blocks[slice(low, high)]
        hashes = _row_hashes(inside.addr - addr, inside.size, inside.kind)
        for begin, end in ranges:
            first = np.maximum(inside.first, begin)
            last = np.minimum(inside.last, end)
            present = np.flatnonzero(first < last)
            for moment, tiling_hash in _xor_changes(
                begin, end, first[present], last[present], hashes[present]
            ):
                key = (size, granule, tiling_hash)
                if key not in self._index:
                    self._index[key] = len(self._rows)
                    self._rows.append(low + np.flatnonzero((first <= moment) & (last > moment)))
                    self._starts.append(addr)
                yield moment, self._index[key]
            if end < self._moments:
                yield end, GONE

    def compute_all(self, least: int) -> list[Ints]:
        """Compute all tilings, in the order of their indices.

        Args:
            least: Bytes below which adjacent pieces are merged.
        """
        counts = np.array([len(rows) for rows in self._rows], np.int64)
        batches = np.unique(np.cumsum(counts) // BATCH, return_index=True)[1].tolist()
        return [
            tiling
            for low, high in pairwise([*batches, len(counts)])
            for tiling in self._batch(slice(low, high), counts[low:high], least)
        ]

    def _batch(self, which: slice, counts: Ints, least: int) -> list[Ints]:
        sizes, granules = np.array([key[:2] for key in list(self._index)[which]], np.int64).T
        blocks = self._blocks[np.concatenate(self._rows[which])]
        group = np.arange(len(counts))
        ends = np.cumsum(counts)
        starts = np.repeat(np.array(self._starts[which], np.int64), counts)
        # After each segment's last block add one of no bytes, so that every gap precedes a block.
        pieces, group = _pieces(
            granules,
            np.insert(np.repeat(group, counts), ends, group),
            np.insert(blocks.addr - starts, ends, sizes),
            np.insert(blocks.size, ends, 0),
            np.insert(blocks.kind, ends, GONE),
        )
        pieces, group = _merged(pieces, group, least)
        return np.split(pieces, np.searchsorted(group, np.arange(1, len(counts))))


def _row_hashes(*columns: Ints) -> NDArray[np.uint64]:
    """Hash each row, so that XOR distinguishes sets of rows.

    This is Zobrist hashing.
    """
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:  # the steps of splitmix64: https://prng.di.unimi.it/splitmix64.c
        mixed += column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _xor_changes(
    begin: int, end: int, first: Ints, last: Ints, hashes: NDArray[np.uint64]
) -> Iterator[tuple[int, int]]:
    """Return the moments at which the XOR of present rows changes.

    Each comes with its XOR. The first is `begin`; all are before `end`.
    """
    moments = np.concatenate([[begin], first, last])
    order = np.argsort(moments, kind="stable")
    all_hashes = np.concatenate([np.zeros(1, np.uint64), hashes, hashes])
    sums = np.bitwise_xor.accumulate(all_hashes[order])
    moments = moments[order]
    final = np.flatnonzero(np.append(moments[1:] != moments[:-1], True) & (moments < end))
    return zip(moments[final].tolist(), sums[final].tolist(), strict=True)


def _pieces(granules: Ints, group: Ints, offset: Ints, size: Ints, kind: Ints) -> tuple[Ints, Ints]:
    """Cut blocks, and the gaps before them, into pieces.

    Blocks of many tilings are cut at once. Returns the pieces, and the tiling of each.
    """
    end = offset + size
    other = np.diff(group, prepend=-1) != 0
    new = other.copy()  # adjacent blocks of one kind are one piece
    new[1:] |= (offset[1:] != end[:-1]) | (kind[1:] != kind[:-1])
    first = np.flatnonzero(new)
    count = np.diff(first, append=len(group))
    group, high, end, kind = group[first], offset[first], end[first + count - 1], kind[first]
    low = np.where(other[first], 0, np.roll(end, 1))
    begin, finish = _whole_pages(low, high, other[first] & (kind == GONE), granules[group])
    sizes = np.stack([begin - low, finish - begin, high - finish, end - high], axis=1)
    kinds = np.empty_like(sizes)
    kinds[:, :3] = STUCK, RELEASABLE, STUCK
    kinds[:, 3] = kind
    counts = np.zeros_like(sizes)
    counts[:, 3] = count
    columns = (sizes, kinds, counts, np.zeros_like(sizes))
    pieces = np.stack([column.ravel() for column in columns], axis=1)
    nonempty = pieces[:, 0] > 0
    return pieces[nonempty], np.repeat(group, 4)[nonempty]


def _whole_pages(low: Ints, high: Ints, empty: Mask, granule: Ints) -> tuple[Ints, Ints]:
    """Return the part of each gap that goes back to the driver.

    These are whole segments, or whole pages if a segment has pages.
    """
    page = np.maximum(granule, 1)
    first = np.where(granule > 0, -(-low // page) * page, np.where(empty, low, high))
    last = np.where(granule > 0, high // page * page, high)
    none = last <= first
    return np.where(none, high, first), np.where(none, high, last)


def _merged(pieces: Ints, group: Ints, least: int) -> tuple[Ints, Ints]:
    """Merge narrow pieces in the same `least` bytes of a segment."""
    narrow = (pieces[:, 0] < least) & (pieces[:, 1] != RELEASABLE)
    if not narrow.any():
        return pieces, group
    offset = np.cumsum(pieces[:, 0]) - pieces[:, 0]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    cell = (offset - np.repeat(offset[starts], np.diff(starts, append=len(group)))) // least
    new = np.ones(len(pieces), bool)
    new[1:] = ~(narrow[1:] & narrow[:-1]) | (cell[1:] != cell[:-1]) | (group[1:] != group[:-1])
    first = np.flatnonzero(new)
    several = np.diff(first, append=len(pieces)) > 1
    stuck = pieces[:, 1] == STUCK
    merged = pieces[first]
    free = np.where(stuck, pieces[:, 0], 0)
    for column, values in ((0, pieces[:, 0]), (2, pieces[:, 2]), (3, free)):
        merged[several, column] = np.add.reduceat(values, first)[several]
    largest = np.lexsort((free - pieces[:, 0], np.cumsum(new)))[first]
    merged[several, 1] = pieces[largest[several], 1] | MIXED
    return merged, group[first]
