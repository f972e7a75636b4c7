"""A run's requests, replayed with other sizes and under a limit."""

import pytest

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.recordings import request_recorder
from nbmem.allocator.recordings.request_recorder import RequestRecorder
from nbmem.core.units import MIB

ENDLESS = 1 << 50


def record(program, **watched):
    """Run a program on an endless card and return its requests."""
    allocator = CachingAllocator(total_bytes=ENDLESS)
    recorder = RequestRecorder(allocator, watched.pop("outside", lambda: 0), **watched)
    program(allocator)
    return recorder.sequence(), allocator


def twice(allocator):
    """Hold 30 MiB, and take 40 MiB twice."""
    allocator.malloc(30 * MIB)
    for _ in range(2):
        allocator.free(allocator.malloc(40 * MIB))


def test_a_replay_without_a_limit_takes_the_same():
    sequence, allocator = record(twice)
    found = sequence.replay(ENDLESS)
    stats = allocator.memory_stats()
    assert found.allocated == stats["allocated_bytes"]["all"]["peak"] == 70 * MIB
    assert found.reserved == allocator.reserved == 70 * MIB
    assert (found.fits, found.retries, found.refused) == (True, 0, None)


def test_other_sizes_are_served_and_refused_to_the_byte():
    sequence, _ = record(twice)
    assert sequence.replay(100 * MIB, [60 * MIB, 40 * MIB, 40 * MIB]).fits
    refused = sequence.replay(100 * MIB - 1, [60 * MIB, 40 * MIB, 40 * MIB]).refused
    assert (refused.size, refused.card_free, refused.pieces) == (40 * MIB, 40 * MIB - 1, ())


def test_pieces_between_live_blocks_are_told():
    def program(allocator):
        blocks = [allocator.malloc(4 * MIB) for _ in range(5)]  # one segment of 20 MiB
        for block in blocks[::2]:
            allocator.free(block)
        allocator.malloc(11 * MIB)

    sequence, _ = record(program)
    assert sequence.replay(32 * MIB).fits
    refused = sequence.replay(30 * MIB).refused
    assert (refused.size, refused.card_free) == (11 * MIB, 10 * MIB)
    assert refused.pieces == (4 * MIB, 4 * MIB, 4 * MIB)
    assert sequence.replay(30 * MIB, conf="expandable_segments:True").refused is not None


def test_streams_and_released_caches_are_repeated():
    def program(allocator):
        block = allocator.malloc(40 * MIB)
        allocator.record_stream(block, 7)
        allocator.free(block)
        other = allocator.malloc(40 * MIB)  # the first waits for its stream
        allocator.complete_streams()
        allocator.free(other)
        allocator.empty_cache()
        allocator.malloc(90 * MIB)

    sequence, allocator = record(program)
    found = sequence.replay(ENDLESS)
    assert found.reserved == 90 * MIB == allocator.memory_stats()["reserved_bytes"]["all"]["peak"]
    assert sequence.replay(80 * MIB, [40 * MIB] * 3).fits


def test_memory_outside_of_the_allocator_counts():
    taken = [10 * MIB]

    def program(allocator):
        twice(allocator)
        taken[0] = 12 * MIB

    sequence, _ = record(program, outside=lambda: taken[0])
    assert sequence.growths == (10 * MIB, 2 * MIB)
    assert sequence.replay(82 * MIB).fits
    assert not sequence.replay(82 * MIB - 1).fits


def test_an_attempt_that_fails_is_not_repeated():
    purpose = [None]

    def program(allocator):
        allocator.malloc(30 * MIB)
        for _ in range(2):
            purpose[0] = "a workspace"
            allocator.free(allocator.malloc(60 * MIB))
            purpose[0] = None
            allocator.free(allocator.malloc(20 * MIB))

    sequence, _ = record(program, attempt=lambda: purpose[0])
    found = sequence.replay(70 * MIB)
    assert (found.fits, found.allocated, found.retries) == (True, 50 * MIB, 1)


def test_runs_are_alike_whatever_their_sizes(monkeypatch):
    sequence, _ = record(twice)
    other, _ = record(lambda a: [a.malloc(MIB), a.free(a.malloc(MIB)), a.free(a.malloc(9 * MIB))])
    less, _ = record(lambda a: a.malloc(MIB))
    assert sequence.is_like(other)
    assert not sequence.is_like(less)
    monkeypatch.setattr(request_recorder, "MAX_OPERATIONS", 2)
    assert record(twice)[0] is None
    assert record(lambda _allocator: None)[0] is None


@pytest.mark.parametrize("pool", [1, 5])
def test_private_pools_are_repeated(pool):
    def program(allocator):
        allocator.begin_pool(pool)
        allocator.free(allocator.malloc(40 * MIB))
        allocator.end_pool(pool)
        allocator.malloc(40 * MIB)  # not from the pool's cache

    sequence, allocator = record(program)
    assert sequence.pools.tolist() == [pool, 0]
    assert sequence.replay(ENDLESS).reserved == allocator.reserved == 80 * MIB
