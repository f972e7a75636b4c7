"""Convert the allocator's segments and blocks to columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nbmem.core.session.events import Blocks, BlockState, Layout, Segments

if TYPE_CHECKING:
    from nbmem.allocator.heap import Heap
    from nbmem.allocator.pool import Block


def layout_of(heap: Heap) -> Layout:
    """Return every segment and block of an allocator as columns.

    Contiguous mapped pages of a virtual range are one segment.
    """
    blocks = sorted(_mapped_blocks(heap), key=lambda block: block.addr)
    segments: list[tuple[int, int, int, int, int, int]] = []
    last: Block | None = None
    for block in blocks:
        if last is not None and block.prev is last:
            addr, size, *rest = segments[-1]
            segments[-1] = (addr, size + block.size, rest[0], rest[1], rest[2], rest[3])
        else:
            segment = block.segment
            owner = segment.pool.owner
            number = owner.number if owner is not None else 0
            kind = (int(segment.pool.small), int(segment.granule > 0), number)
            segments.append((block.addr, block.size, segment.stream, *kind))
        last = block
    rows = [(b.addr, b.size, b.requested, _state(heap, b), -1) for b in blocks]
    return Layout(segments=Segments.from_rows(segments), blocks=Blocks.from_rows(rows))


def _mapped_blocks(heap: Heap) -> Iterable[Block]:
    yield from heap.live.values()
    yield from dict.fromkeys([b for queue in heap.queues.values() for b in queue] + heap.deferred)
    lists = {id(s.free): s.free for s in (*heap.segments.values(), *heap.ranges.values())}
    for free in lists.values():
        yield from free.blocks


def _state(heap: Heap, block: Block) -> BlockState:
    if block.key:
        return BlockState.INACTIVE
    if heap.live.get(block.addr) is block:
        return BlockState.ALLOCATED
    return BlockState.PENDING
