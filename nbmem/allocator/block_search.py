"""Search for a cached block, with every option of the allocator.

`CachingAllocator.malloc` has the case without options inline, for speed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from nbmem.allocator.expandable import growth_of
from nbmem.allocator.pool import SIZE_SHIFT, Block, FreeList, Pool

if TYPE_CHECKING:
    from nbmem.allocator.heap import Heap


def find(heap: Heap, pool: Pool, stream: int, size: int) -> Block | None:
    """Remove the best cached block of at least `size` bytes from its list.

    The result is the block, or None if none fits.
    """
    if heap.counts_searches:
        pool.searches += 1
    free = pool.lists.get(stream)
    at = None if free is None else _index_of_best(heap, free, size)
    if free is None or at is None:
        return None
    block = free.blocks.pop(at)
    del free.keys[at]
    block.key = 0
    return block


def would_find(heap: Heap, pool: Pool, stream: int, size: int) -> bool:
    """Return whether `find` would find a block, without changing anything."""
    free = pool.lists.get(stream)
    return free is not None and _index_of_best(heap, free, size) is not None


def _index_of_best(heap: Heap, free: FreeList, size: int) -> int | None:
    """Return the index of the block to use, or None.

    There is no second candidate if max_split_size rules the first one out.
    """
    at = _first_that_fits(heap, free, size)
    limit = heap.settings.max_split_size
    if at is None or limit is None:
        return at
    found = free.blocks[at].size
    if size < limit <= found:
        return None
    if size >= limit and found >= size + heap.settings.max_non_split_rounding:
        return None
    return at


def _first_that_fits(heap: Heap, free: FreeList, size: int) -> int | None:
    """Return the index of the first block that fits, or None.

    Blocks of expandable segments are compared by how far they can grow.
    """
    blocks = free.blocks
    at = bisect_left(free.keys, size << SIZE_SHIFT)
    if at == len(blocks):
        return None
    if not blocks[at].segment.granule:
        return at
    if heap.settings.expandable_segments:
        while (
            at + 1 < len(blocks)
            and blocks[at].segment.granule
            and growth_of(blocks[at + 1]) < growth_of(blocks[at])
        ):
            at += 1
        return at
    while at < len(blocks) and blocks[at].segment.granule:
        at += 1
    return at if at < len(blocks) else None
