"""Expandable segments: virtual ranges whose pages are mapped on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.allocator.pool import Block, Pool, Segment
from nbmem.allocator.rounding import SMALL_SEGMENT
from nbmem.core.session.events import Action

if TYPE_CHECKING:
    from nbmem.allocator.heap import Heap


def _usable(block: Block | None) -> bool:
    """Return whether a block is free or not mapped."""
    return block is not None and (block.key > 0 or not block.mapped)


def _room_from(block: Block | None, wanted: int) -> int:
    """Return the consecutive usable bytes from a block on.

    Counting stops when there are as many as wanted.
    """
    room = 0
    while room < wanted and block is not None and _usable(block):
        room += block.size
        block = block.next
    return room


def growth_of(block: Block) -> int:
    """Return the bytes of a block plus the unmapped block after it."""
    above = block.next
    return block.size + (above.size if above is not None and not above.mapped else 0)


def allocate(heap: Heap, pool: Pool, stream: int, size: int) -> Block | None:
    """Map pages until a block of `size` bytes is free, and return it.

    The result is None if the driver has no memory left.

    The block found is in no list any more; what was mapped before a failure stays cached.
    """
    block = _candidate(heap, pool, stream, size)
    if not block.mapped and not _map(heap, block, min(block.size, size)):
        return None
    while block.size < size:
        above = block.next
        if above is None or not _map(heap, above, min(size - block.size, above.size)):
            return None
        block = above
    block.segment.free.remove(block)
    return block


def _candidate(heap: Heap, pool: Pool, stream: int, size: int) -> Block:
    for unmapped in pool.list_for(stream).unmapped:
        before = unmapped.prev
        start = before if before is not None and _usable(before) else unmapped
        if _room_from(start, size) >= size:
            return start
    return _new_range(heap, pool, stream)


def _new_range(heap: Heap, pool: Pool, stream: int) -> Block:
    """Reserve addresses for one and an eighth of the card, as torch does."""
    granule = SMALL_SEGMENT if pool.small else heap.settings.large_segment_size
    size = -(-(heap.total_bytes + heap.total_bytes // 8) // granule) * granule
    segment = Segment(heap.driver.reserve(size), size, pool, stream, granule=granule)
    block = Block(segment.addr, size, segment, heap.new_base())
    block.mapped = False
    segment.free.insert_unmapped(block)
    heap.ranges[segment.addr] = segment
    heap.refresh()
    return block


def _map(heap: Heap, block: Block, size: int) -> bool:
    """Map the first bytes of an unmapped block, in whole granules.

    The result is False if the driver has no memory for them.
    """
    segment = block.segment
    size = -(-size // segment.granule) * segment.granule
    if not heap.driver.map(block.addr, size):
        return False
    addr = block.addr
    free = segment.free
    free.remove_unmapped(block)
    block.mapped = True
    if size < block.size:
        rest = block.cut_tail(block.size - size, heap.base_for_piece(block))
        rest.mapped = False
        free.insert_unmapped(rest)
    for neighbour in (block.prev, block.next):
        if neighbour is not None and neighbour.key:
            free.remove(neighbour)
            block.take_in(neighbour)
    block.age_from = segment.pool.searches
    free.insert(block)
    heap.reserve(segment.pool, size)
    if heap.emit is not None:
        heap.emit(Action.SEGMENT_MAP, addr, size, segment.stream)
    return True


def unmap(heap: Heap, block: Block) -> None:
    """Unmap the whole granules inside a free block; the ends stay cached."""
    segment = block.segment
    start = segment.addr
    granule = segment.granule
    first = start + -((start - block.addr) // granule) * granule
    last = start + (block.addr + block.size - start) // granule * granule
    if last <= first:
        return
    free = segment.free
    free.remove(block)
    pieces = []
    if first > block.addr:
        pieces.append(block.cut_front(first - block.addr, heap.base_for_piece(block)))
    if last < block.addr + block.size:
        pieces.append(block.cut_tail(block.addr + block.size - last, heap.base_for_piece(block)))
    for piece in pieces:
        piece.age_from = segment.pool.searches
        free.insert(piece)
    block.mapped = False
    for neighbour in (block.prev, block.next):
        if neighbour is not None and not neighbour.mapped:
            free.remove_unmapped(neighbour)
            block.take_in(neighbour)
    free.insert_unmapped(block)
    heap.count_released(segment.pool, last - first)
    heap.driver.unmap(first, last - first)
    if heap.emit is not None:
        heap.emit(Action.SEGMENT_UNMAP, first, last - first, segment.stream)
    if block.whole:
        free.remove_unmapped(block)
        del heap.ranges[start]
        heap.driver.release(start, segment.size)
