"""Release cached memory to the driver: all, just enough, or the oldest."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from nbmem.allocator import expandable, streams
from nbmem.allocator.pool import SIZE_SHIFT, Block, Pool
from nbmem.core.errors import ReplayError
from nbmem.core.session.events import Action

if TYPE_CHECKING:
    from nbmem.allocator.heap import Heap


def release_block(heap: Heap, block: Block) -> None:
    """Release one free whole segment to the driver.

    Raises:
        ReplayError: The block is a piece of a segment: torch would pass the middle of an
            allocation to cudaFree, which can happen after max_split_size was lowered.
    """
    if not block.whole:
        raise ReplayError(
            "max_split_size_mb was lowered while larger segments were split: here torch would free "
            "the middle of a segment and abort, so nothing after this can be simulated. "
            "Set max_split_size_mb before the first allocation."
        )
    segment = block.segment
    segment.free.remove(block)
    del heap.segments[segment.addr]
    heap.driver.free(segment.addr, segment.size)
    heap.count_released(segment.pool, segment.size)
    heap.statistics.segments.remove(1, small=segment.pool.small)
    limit = heap.settings.max_split_size
    if limit is not None and segment.size >= limit:
        heap.statistics.oversize_segments.remove(1)
    if heap.emit is not None:
        heap.emit(Action.SEGMENT_FREE, segment.addr, segment.size, segment.stream)


def release_all(heap: Heap) -> None:
    """Release all cached memory to the driver, as empty_cache() does.

    The allocator also does this before it runs out of memory.

    During a capture (up to 2.12: in any pool scope) the default pool is left alone.
    """
    if not heap.capturing:
        streams.synchronize(heap)
        _release_pool(heap, heap.large)
        _release_pool(heap, heap.small)
    for number, owner in list(heap.freeable.items()):
        _release_pool(heap, owner.small)
        _release_pool(heap, owner.large)
        if owner.driver_calls == 0:
            del heap.freeable[number]
            del heap.private[number]
    heap.refresh()


def _release_pool(heap: Heap, pool: Pool) -> None:
    mapped = []
    for block in pool.free_blocks():
        if block.segment.granule:
            mapped.append(block)
        elif block.whole:
            release_block(heap, block)
    for block in mapped:
        expandable.unmap(heap, block)


def release_enough(heap: Heap, pool: Pool, stream: int, size: int) -> bool:
    """Release cached oversize blocks; return whether they suffice.

    This is for max_split_size alone. One block that is large enough is released, or else
    several that together are.

    Blocks given back stay so even where they were not enough.
    """
    limit = heap.settings.max_split_size
    if limit is None:
        return False
    wanted = max(size, limit)
    free = pool.list_for(stream)
    at = bisect_left(free.keys, wanted << SIZE_SHIFT)
    if at < len(free.blocks) and not free.blocks[at].segment.granule:
        release_block(heap, free.blocks[at])
        return True
    found = 0
    for block in reversed(free.blocks[:at]):
        if found >= wanted or block.size < limit:
            break
        if not block.segment.granule:
            found += block.size
            release_block(heap, block)
    return found >= wanted


def collect_garbage(heap: Heap) -> None:
    """Release large cached segments of at least average age.

    It stops when the reserved bytes are no longer above the threshold.
    """
    limit = heap.limit or 0
    target = heap.held - int(heap.settings.garbage_collection_threshold * limit)
    if target <= 0:
        return
    pool = heap.large
    left = [block for block in pool.free_blocks() if block.whole]
    age = sum(pool.searches - block.age_from for block in left)
    reclaimed = 0
    freed = True
    while reclaimed < target and freed and left:
        threshold = age / len(left)
        freed = False
        kept = []
        for block in left:
            block_age = pool.searches - block.age_from
            if not block.segment.granule and block_age >= threshold:
                freed = True
                reclaimed += block.size
                age -= block_age
                release_block(heap, block)
            else:
                kept.append(block)
        left = kept
