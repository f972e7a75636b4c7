"""Fill an allocator with a recorded layout, to continue from it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nbmem.allocator.pool import Block, Pool, PrivatePool, Segment
from nbmem.allocator.rounding import SMALL_SEGMENT
from nbmem.core.session.events import BlockState, Layout

if TYPE_CHECKING:
    from nbmem.allocator.heap import Heap

_UNKNOWN_STREAM = -1
"""Pending blocks of a recording wait for a stream that it does not name."""


def restore(heap: Heap, layout: Layout) -> None:
    """Fill an empty heap with recorded segments and blocks.

    The ages of free blocks and the order in which segments were made are not recorded: segments
    count as made in the order of their addresses. A virtual range is taken to begin at its first
    mapped page.
    """
    pieces = deque(
        zip(
            layout.blocks.addr.tolist(),
            layout.blocks.size.tolist(),
            layout.blocks.requested.tolist(),
            layout.blocks.state.tolist(),
            strict=True,
        )
    )
    ranges: dict[tuple[int, Pool], Block] = {}
    rows = zip(*(column.tolist() for _, column in layout.segments.columns()), strict=True)
    for addr, size, stream, small, expandable, number in rows:
        pool = _pool(heap, small=bool(small), number=number)
        last = None
        if expandable:
            last = _room_in_range(heap, ranges.get((stream, pool)), pool, stream, addr)
            segment = last.segment
        else:
            segment = heap.segments[addr] = Segment(addr, size, pool, stream)
        base = heap.new_base() if last is None else last.base
        heap.held += size
        heap.statistics.reserved.add(size, small=pool.small)
        if pool.owner is not None:
            pool.owner.reserved.add(size, small=pool.small)
        if not expandable:
            heap.statistics.segments.add(1, small=pool.small)
        found: list[tuple[Block, BlockState]] = []
        while pieces and pieces[0][0] < addr + size:
            place, length, requested, state = pieces.popleft()
            if last is not None and last.addr == place and not last.mapped:
                block = _front_of(last, length)
            else:
                block = Block(place, length, segment, base)
                block.prev = found[-1][0] if found else None
                if block.prev is not None:
                    block.prev.next = block
            block.requested = requested
            found.append((block, BlockState(state)))
        for block, kind in found:
            _place(heap, block, kind)
        if last is not None:
            segment.free.insert_unmapped(last)
            ranges[stream, pool] = last
    heap.statistics.reset_peaks()
    heap.refresh()


def _pool(heap: Heap, *, small: bool, number: int) -> Pool:
    if not number:
        return heap.small if small else heap.large
    owner = heap.private.get(number)
    if owner is None:
        owner = PrivatePool(number, heap.statistics.small, heap.statistics.large)
        owner.users = 1
        heap.private[number] = owner
    owner.driver_calls += 1
    return owner.small if small else owner.large


def _room_in_range(heap: Heap, tail: Block | None, pool: Pool, stream: int, addr: int) -> Block:
    """Return the unmapped block whose front will be mapped at `addr`.

    It is in no free list.
    """
    if tail is not None and tail.addr <= addr < tail.addr + tail.size:
        tail.segment.free.remove_unmapped(tail)
        if tail.addr < addr:
            gap = _front_of(tail, addr - tail.addr)
            gap.mapped = False
            tail.segment.free.insert_unmapped(gap)
        return tail
    granule = SMALL_SEGMENT if pool.small else heap.settings.large_segment_size
    length = -(-(heap.total_bytes + heap.total_bytes // 8) // granule) * granule
    segment = Segment(addr, length, pool, stream, granule=granule)
    block = Block(addr, length, segment, heap.new_base())
    block.mapped = False
    heap.ranges[addr] = segment
    return block


def _front_of(block: Block, size: int) -> Block:
    """Cut the front off a block of a virtual range.

    The front is never the whole, because a virtual range is longer than the card.
    """
    return block.cut_front(size, block.base)


def _place(heap: Heap, block: Block, state: BlockState) -> None:
    side = block.segment.side
    if state is BlockState.INACTIVE:
        block.segment.free.insert(block)
        if not block.whole and not block.segment.granule:
            side.split_up += block.size
            side.pieces_up += 1
        return
    side.bytes_up += block.size
    side.count_up += 1
    side.requested_up += block.requested
    if state is BlockState.ALLOCATED:
        heap.live[block.addr] = block
        return
    heap.statistics.note_pending()
    side.bytes_down += block.size
    side.count_down += 1
    side.pending += block.size
    side.pendings += 1
    block.waiting = 1
    heap.queues.setdefault(_UNKNOWN_STREAM, deque()).append(block)
