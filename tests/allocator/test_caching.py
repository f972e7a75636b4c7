"""Small programs with known counters, and what users are told."""

import pytest

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import DownwardDriver, SimulatedDriver
from nbmem.allocator.heap import AllocatorOOM
from nbmem.core.errors import ReplayError, UsageError
from nbmem.core.session.events import Action, BlockState
from nbmem.core.units import GIB, MIB
from tests.allocator.programs import stats_of

PIECES = ("allocated_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")


def test_splits_and_merges_in_one_segment():
    a = CachingAllocator(total_bytes=80 * GIB)
    live = {}
    steps = [
        ("a", 1000, (1_024, 1_000, 2_097_152, 2_096_128, 1)),
        ("b", 600_000, (601_088, 601_000, 2_097_152, 1_496_064, 1)),
        ("c", 1_500_000, (2_101_248, 2_101_000, 23_068_672, 20_967_424, 2)),
        ("a", None, (2_100_224, 2_100_000, 23_068_672, 20_968_448, 3)),
        ("d", 512, (2_100_736, 2_100_512, 23_068_672, 20_967_936, 3)),
        ("b", None, (1_500_672, 1_500_512, 23_068_672, 21_568_000, 2)),
        ("d", None, (1_500_160, 1_500_000, 23_068_672, 19_471_360, 1)),
        ("e", 18_000_000, (19_500_544, 19_500_000, 23_068_672, 1_470_976, 1)),
        ("c", None, (18_000_384, 18_000_000, 23_068_672, 2_971_136, 2)),
        ("e", None, (0, 0, 23_068_672, 0, 0)),
    ]
    for name, size, expected in steps:
        if size is None:
            a.free(live.pop(name))
        else:
            live[name] = a.malloc(size)
        assert stats_of(a, *PIECES, "inactive_split") == expected, name
    freed = []
    a.emit = lambda action, _addr, size, _stream: freed.append((action, size))
    a.empty_cache()
    assert freed == [(Action.SEGMENT_FREE, 20 * MIB), (Action.SEGMENT_FREE, 2 * MIB)]
    assert a.reserved == 0


def test_the_limit_stops_new_memory_and_a_failure_changes_nothing():
    a = CachingAllocator(total_bytes=80_000_000_000)
    a.set_memory_fraction(0.0003)
    a.malloc(1000)
    a.malloc(20 * MIB)
    before = a.layout()
    with pytest.raises(AllocatorOOM) as caught:
        a.malloc(2 * MIB)
    assert a.reserved == 23_068_672
    assert a.layout().blocks.addr.tolist() == before.blocks.addr.tolist()
    stats = a.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 1)
    assert caught.value.limit == 24_000_000
    assert str(caught.value) == (
        "CUDA out of memory: 2.0 MiB were asked for, but of 74.51 GiB (limited to 22.9 MiB) only "
        "74.48 GiB are free."
    )


def test_with_max_split_size_just_enough_is_given_back():
    a = CachingAllocator(total_bytes=256 * MIB, settings="max_split_size_mb:32")
    first, second = a.malloc(40 * MIB), a.malloc(100 * MIB)
    a.free(first)
    a.free(second)
    a.malloc(50 * MIB)
    assert a.reserved == 199_229_440
    a.malloc(190 * MIB)
    assert a.reserved == 251_658_240
    assert a.memory_stats()["num_alloc_retries"] == 1
    with pytest.raises(AllocatorOOM) as caught:
        a.malloc(210 * MIB)
    assert caught.value.free_bytes == 16_777_216
    stats = a.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (2, 1)


def test_expandable_segments_map_and_unmap_whole_granules():
    a = CachingAllocator(total_bytes=80 * GIB, settings="expandable_segments:True")
    first = a.malloc(1000)
    assert a.reserved == 2_097_152
    b = a.malloc(1_048_577)
    assert (a.block_bytes(b), a.reserved) == (1_049_088, 23_068_672)
    c = a.malloc(25 * MIB)
    assert (c, a.reserved) == (b + 1_049_088, 44_040_192)
    a.free(b)
    d = a.malloc(20 * MIB)
    assert a.reserved == 65_011_712
    a.free(c)
    a.empty_cache()
    assert a.reserved == 44_040_192
    a.free(d)
    a.free(first)
    a.empty_cache()
    assert a.reserved == 0
    stats = a.memory_stats()
    assert stats["segment"]["all"]["allocated"] == 0
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (4, 3)


def test_a_block_that_another_stream_uses_is_active_until_that_stream_is_done():
    a = CachingAllocator(total_bytes=80 * GIB)
    first = a.malloc(2 * MIB)
    a.record_stream(first, 4096)
    a.free(first)
    assert (a.allocated, a.active) == (0, 2 * MIB)
    assert BlockState.PENDING in a.layout().blocks.state.tolist()
    assert a.malloc(2 * MIB) == first + 2 * MIB
    assert (a.allocated, a.active) == (2 * MIB, 4 * MIB)
    a.complete_streams()
    assert a.malloc(2 * MIB) == first


@pytest.mark.parametrize(
    ("release", "reused"), [("2.4.1", "c"), ("2.11.0", "c"), ("2.12.0", "a"), ("2.13.0", "a")]
)
def test_the_order_of_equal_blocks_is_that_of_the_release(release, reused):
    class Downwards(SimulatedDriver):
        def malloc(self, size):
            self.used += size
            return 0x7F00_0000_0000 - self.used

    a = CachingAllocator(total_bytes=GIB, release=release, driver=Downwards(GIB))
    blocks = {name: a.malloc(30 * MIB) for name in "abc"}
    for name in "cab":
        a.free(blocks[name])
    assert a.malloc(30 * MIB) == blocks[reused]


def test_zero_bytes_allocate_nothing_and_an_exbibyte_is_refused():
    a = CachingAllocator(total_bytes=GIB)
    assert a.malloc(0) == 0
    a.free(0)
    with pytest.raises(AllocatorOOM):
        a.malloc(1 << 60)
    assert a.memory_stats()["num_ooms"] == 0
    assert a.reserved == 0


def test_private_pools_keep_their_memory_until_they_are_released():
    a = CachingAllocator(total_bytes=GIB)
    a.begin_pool(1)
    inside = a.malloc(30 * MIB)
    a.end_pool(1)
    a.free(inside)
    assert a.malloc(30 * MIB) != inside
    a.empty_cache()
    assert a.reserved == 60 * MIB
    assert a.layout().segments.pool.tolist() == [1, 0]
    by_pool = a.memory_stats()["reserved_bytes_by_private_pools"]
    assert by_pool[0, 1]["large_pool"]["current"] == 30 * MIB
    a.release_pool(1)
    a.empty_cache()
    assert a.reserved == 30 * MIB


def test_a_shared_pool_is_used_before_memory_runs_out():
    a = CachingAllocator(total_bytes=64 * MIB)
    a.begin_pool(1, shared_on_oom=True)
    inside = a.malloc(40 * MIB)
    a.end_pool(1)
    a.free(inside)
    assert a.malloc(40 * MIB) == inside


def test_refusal_without_a_retry_since_2_12():
    conf = "throw_on_cudamalloc_oom:True"
    a = CachingAllocator(total_bytes=64 * MIB, settings=conf)
    a.free(a.malloc(40 * MIB))
    with pytest.raises(AllocatorOOM) as caught:
        a.malloc(50 * MIB)
    assert caught.value.rejected
    stats = a.memory_stats()
    assert (stats["num_oom_rejections"], stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0, 0)
    old = CachingAllocator(total_bytes=64 * MIB, settings=conf, release="2.11.0")
    assert "num_oom_rejections" not in old.memory_stats()


def test_sums_and_peaks_begin_anew_on_request():
    a = CachingAllocator(total_bytes=GIB)
    a.free(a.malloc(30 * MIB))
    kept = a.malloc(4 * MIB)
    a.reset_peak_stats()
    a.reset_accumulated_stats()
    stats = a.memory_stats()["allocated_bytes"]["all"]
    assert stats == {"current": 4 * MIB, "peak": 4 * MIB, "allocated": 0, "freed": 0}
    a.free(kept)
    assert a.memory_stats()["active_bytes"]["large_pool"]["freed"] == 4 * MIB


def test_wrong_calls_say_what_is_wrong():
    a = CachingAllocator(total_bytes=GIB)
    for call in (a.free, a.block_bytes, lambda addr: a.record_stream(addr, 1)):
        with pytest.raises(UsageError, match="No allocated block begins at address 0x10"):
            call(0x10)
    with pytest.raises(UsageError, match="Pool 7 is not active"):
        a.end_pool(7)
    with pytest.raises(UsageError, match="Pool 7 is not in use"):
        a.release_pool(7)
    with pytest.raises(UsageError, match="Pool 0 is the default one"):
        a.begin_pool(0)
    with pytest.raises(UsageError, match="between 0 and 1; got 2"):
        a.set_memory_fraction(2)
    old = CachingAllocator(total_bytes=GIB, release="2.7.1")
    old.begin_pool(1)
    with pytest.raises(UsageError, match=r"torch before 2\.8"):
        old.empty_cache()


def test_lowering_max_split_size_over_split_segments_is_refused_where_torch_would_abort():
    a = CachingAllocator(total_bytes=200 * MIB)
    block = a.malloc(100 * MIB)
    a.free(block)
    kept = a.malloc(10 * MIB)
    a.set_settings("max_split_size_mb:32")
    with pytest.raises(ReplayError, match="lowered while larger segments were split"):
        a.malloc(150 * MIB)
    assert kept == block


def test_a_card_hands_out_addresses_downwards_and_fills_its_chunks():
    """As recorded: resnet50_b40_sgdm_offload reserves 68 MiB more where they rise."""
    driver = DownwardDriver(GIB)
    first, second, small, large = (driver.malloc(n * MIB) for n in (20, 20, 2, 124))
    assert second == first - 32 * MIB
    assert small == second + 20 * MIB
    assert large == second - 128 * MIB
