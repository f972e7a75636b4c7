"""Checkpoints of a private pool's state, as CUDA graph trees make them."""

import pytest

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.checkpoints import checkpoint, restore
from nbmem.core.errors import UsageError
from nbmem.core.session.events import BlockState
from nbmem.core.units import MIB

KIB = 1024


def blocks(heap):
    """Return address, size and use of each block."""
    found = heap.layout().blocks
    used = (found.state == BlockState.ALLOCATED).tolist()
    return list(zip(found.addr.tolist(), found.size.tolist(), used, strict=True))


@pytest.fixture(params=["", "expandable_segments:True"])
def heap(request):
    return CachingAllocator(total_bytes=1 << 34, settings=request.param)


def test_restore_resets_the_pool_and_leaves_the_rest(heap):
    outside = heap.malloc(3 * MIB)
    heap.begin_pool(1)
    small, large = heap.malloc(4 * KIB), heap.malloc(5 * MIB)
    gone, last = heap.malloc(2 * MIB), heap.malloc(6 * MIB)
    heap.free(gone)
    heap.end_pool(1)
    before = blocks(heap)
    state = checkpoint(heap, 1)
    heap.free(large)
    heap.begin_pool(1)
    other = heap.malloc(1536 * KIB)
    heap.end_pool(1)
    assert blocks(heap) != before
    done = restore(heap, state)
    assert blocks(heap) == before
    assert set(done.made) == {small, large, last}
    assert set(done.freed) == {small, other, last}
    assert heap.allocated == 14 * MIB + 4 * KIB
    for addr in (outside, *done.made):
        heap.free(addr)
    stats = heap.memory_stats()
    for name in ("allocated_bytes", "allocation", "requested_bytes", "inactive_split"):
        assert stats[name]["all"]["current"] == 0


def test_restore_allocates_blocks_that_were_free(heap):
    heap.begin_pool(1)
    first, second = heap.malloc(5 * MIB), heap.malloc(5 * MIB)
    heap.free(first)
    heap.end_pool(1)
    state = checkpoint(heap, 1)
    heap.free(second)
    heap.reset_peak_stats()
    restore(heap, state)
    assert heap.memory_stats()["allocated_bytes"]["all"]["peak"] > 5 * MIB == heap.allocated


def test_a_pool_that_is_not_there_has_no_state(heap):
    with pytest.raises(UsageError, match="no private pool 7"):
        checkpoint(heap, 7)
