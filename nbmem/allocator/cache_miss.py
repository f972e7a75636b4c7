"""Fallbacks of the allocator when no cached block serves a request."""

from __future__ import annotations

from nbmem.allocator import expandable
from nbmem.allocator.block_search import find
from nbmem.allocator.cached_blocks import collect_garbage, release_all, release_enough
from nbmem.allocator.heap import AllocatorOOM, Heap
from nbmem.allocator.pool import Block, Pool, Segment
from nbmem.allocator.rounding import segment_bytes
from nbmem.core.session.events import Action


def allocate_block(heap: Heap, pool: Pool, stream: int, size: int, requested: int) -> Block:
    """Allocate a block of at least `size` bytes, or release and retry.

    The block is in no free list.

    Args:
        heap: The allocator.
        pool: Where the request belongs.
        stream: The stream of the request.
        size: Rounded bytes.
        requested: Bytes that the caller requested.

    Raises:
        AllocatorOOM: Nothing helped.
    """
    wanted = segment_bytes(size, heap.settings.large_segment_size)
    if heap.counts_searches:
        collect_garbage(heap)
    block = _new_memory(heap, pool, stream, size, wanted)
    if block is not None:
        return block
    statistics = heap.statistics
    if _rejected(heap, wanted):
        statistics.num_oom_rejections += 1
        raise _failure(heap, requested, size, wanted, rejected=True)
    is_default_pool = pool.owner is None
    if is_default_pool and heap.rules.early_use_on_oom:
        block = _borrow(heap, pool, stream, size)
    if block is None and release_enough(heap, pool, stream, size):
        block = _new_memory(heap, pool, stream, size, wanted)
    if block is None and not heap.capturing:
        release_all(heap)
        statistics.num_alloc_retries += 1
        block = _new_memory(heap, pool, stream, size, wanted)
    if block is None and is_default_pool and not heap.rules.early_use_on_oom:
        block = _borrow(heap, pool, stream, size)
    if block is not None:
        return block
    statistics.num_ooms += 1
    if heap.emit is not None:
        heap.emit(Action.OOM, heap.driver.free_bytes, size, stream)
    # Raised at once: a local variable would form a cycle of error, traceback and frame.
    raise _failure(heap, requested, size, wanted)


def _failure(
    heap: Heap, requested: int, size: int, wanted: int, *, rejected: bool = False
) -> AllocatorOOM:
    return AllocatorOOM(
        requested=requested,
        rounded=size,
        segment=wanted,
        free_bytes=heap.driver.free_bytes,
        limit=heap.limit,
        total_bytes=heap.total_bytes,
        rejected=rejected,
    )


def _rejected(heap: Heap, wanted: int) -> bool:
    """Return whether throw_on_cudamalloc_oom forbids to call the driver."""
    if not (heap.rules.rejects and heap.settings.throw_on_cudamalloc_oom):
        return False
    return heap.held + wanted > int(heap.fraction * heap.total_bytes)


def _new_memory(heap: Heap, pool: Pool, stream: int, size: int, wanted: int) -> Block | None:
    if heap.limit is not None and heap.held + wanted > heap.limit:
        return None
    if _rejected(heap, wanted):
        return None
    if heap.expandable(pool):
        block = expandable.allocate(heap, pool, stream, size)
        if block is not None and pool.owner is not None:
            pool.owner.driver_calls += 1
        return block
    addr = heap.driver.malloc(wanted)
    if addr is None:
        return None
    segment = Segment(addr, wanted, pool, stream)
    block = Block(addr, wanted, segment, heap.new_base())
    heap.segments[addr] = segment
    heap.reserve(pool, wanted)
    heap.statistics.segments.add(1, small=pool.small)
    if pool.owner is not None:
        pool.owner.driver_calls += 1
    limit = heap.settings.max_split_size
    if limit is not None and wanted >= limit:
        heap.statistics.oversize_segments.add(1)
    if heap.emit is not None:
        heap.emit(Action.SEGMENT_ALLOC, addr, wanted, stream)
    return block


def _borrow(heap: Heap, pool: Pool, stream: int, size: int) -> Block | None:
    """Take a cached block of a private pool that is shared on OOM.

    The result is None if there is none that fits.
    """
    for owner in heap.private.values():
        if owner.shared_on_oom:
            block = find(heap, owner.small if pool.small else owner.large, stream, size)
            if block is not None:
                return block
    return None
