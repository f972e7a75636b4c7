"""The allocator's map at one moment: segments, and the blocks that tile them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Literal

import numpy as np

from nbmem.allocator.rounding import SMALL_SEGMENT
from nbmem.allocator.settings import AllocatorSettings
from nbmem.allocator.stretches import Stretches
from nbmem.core.categories import Category
from nbmem.core.events import Action
from nbmem.details import Piece, Pool, PoolSegment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbmem.core.events import Segments
    from nbmem.ledger.books import Books

MOST_SEGMENTS, MOST_PIECES = 400, 1500
"""Segments and pieces that a map shows; smaller segments beyond them are summed up."""
_DRIVERS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


def pool_at(books: Books, position: int) -> Pool:
    """Lay out what torch held from the driver at one position."""
    segments = [_segment(books, segment, blocks) for segment, blocks in _tiled(books, position)]
    segments.sort(key=lambda segment: -segment.size)
    shown: list[PoolSegment] = []
    pieces = 0
    for segment in segments[:MOST_SEGMENTS]:
        pieces += len(segment.pieces)
        if shown and pieces > MOST_PIECES:
            break
        shown.append(segment)
    f = books.followed
    used, releasable = int(f.active[position]), int(f.releasable[position])
    reserved = int(f.reserved[position])
    return Pool(
        event=position,
        segments=tuple(shown),
        others=len(segments) - len(shown),
        other_bytes=sum(segment.size for segment in segments[len(shown) :]),
        used=used,
        releasable=releasable,
        stuck=reserved - used - releasable,
    )


Block = tuple[int, int, bool, Category]
"""Address, bytes, whether it is pending, and what for."""
Row = tuple[int, int, int, int, int, int]
"""One row of Segments."""


def _tiled(books: Books, position: int) -> Iterator[tuple[Row, list[Block]]]:
    """Each segment with the blocks in it."""
    segments = _segments(books, position)
    a = books.followed.allocations
    rows = np.flatnonzero((a.born < position) & (a.died >= position))
    rows = rows[np.argsort(a.addr[rows], kind="stable")]
    bounds = np.searchsorted(a.addr[rows], [segments.addr, segments.addr + segments.size])
    columns = zip(*(column.tolist() for _, column in segments.columns()), strict=True)
    for index, segment in enumerate(columns):
        inside = rows[bounds[0][index] : bounds[1][index]]
        yield (
            segment,
            [
                (int(a.addr[i]), int(a.block[i]), bool(a.freed[i] < position), category)
                for i, category in zip(inside, map(Category, books.category[inside]), strict=True)
            ],
        )


def _segments(books: Books, position: int) -> Segments:
    """The segments at a position: those at the end, with the later events taken back."""
    events = books.trace.events
    stretches = Stretches(books.trace.end.segments)
    later = np.flatnonzero(np.isin(events.action[position:], _DRIVERS))[::-1] + position
    for row in later.tolist():
        stretches.take_back(
            int(events.action[row]),
            int(events.addr[row]),
            int(events.size[row]),
            int(events.stream[row]),
        )
    return stretches.segments()


def _segment(books: Books, segment: Row, blocks: list[Block]) -> PoolSegment:
    addr, size, stream, small, expandable, pool = segment
    granule = 0
    if expandable:
        trace = books.trace
        large = AllocatorSettings.from_torch(trace.settings, trace.release).large_segment_size
        granule = SMALL_SEGMENT if small else large
    return PoolSegment(
        size=size,
        small=bool(small),
        expandable=bool(expandable),
        stream=stream,
        pool=pool,
        pieces=tuple(_pieces(size, granule, [(b[0] - addr, b[1], b[2], b[3]) for b in blocks])),
    )


def _pieces(size: int, granule: int, blocks: Iterable[Block]) -> Iterator[Piece]:
    """Tile a segment; blocks are placed by their offset, alike neighbours become one piece."""
    end = 0
    for (pending, category, _), run in groupby(_runs(blocks), key=lambda item: item[0]):
        alike = [block for _, block in run]
        offset = alike[0][0]
        yield from _gap(end, offset, size, granule)
        end = alike[-1][0] + alike[-1][1]
        yield Piece(
            offset=offset,
            size=end - offset,
            state="pending" if pending else "used",
            category=category,
            blocks=len(alike),
        )
    yield from _gap(end, size, size, granule)


def _runs(blocks: Iterable[Block]) -> Iterator[tuple[tuple[bool, Category, int], Block]]:
    """Blocks with what they share with their neighbour: state, category, and no gap between."""
    run = end = 0
    for block in blocks:
        run += block[0] != end
        end = block[0] + block[1]
        yield (block[2], block[3], run), block


def _gap(start: int, end: int, size: int, granule: int) -> Iterator[Piece]:
    """A free stretch: whole segments and whole pages go back to the driver, the rest is stuck."""
    if end <= start:
        return
    first = last = end
    if granule:
        first, last = -(-start // granule) * granule, end // granule * granule
        if last <= first:
            first = last = end
    elif end - start == size:
        first = start
    stretches: tuple[tuple[int, int, Literal["stuck", "releasable"]], ...] = (
        (start, first, "stuck"),
        (first, last, "releasable"),
        (last, end, "stuck"),
    )
    for low, high, state in stretches:
        if high > low:
            yield Piece(offset=low, size=high - low, state=state, category=None, blocks=0)
