"""Sizes of blocks and segments: the vectors of the released allocators."""

import numpy as np
import pytest

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.rounding import round_size, round_sizes, segment_bytes, split_thresholds
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.units import GIB, MIB

OLD, NEW = "2.9.1", "2.13.0"


@pytest.mark.parametrize(
    ("requested", "block", "reserved"),
    [
        (1, 512, 2 * MIB),
        (511, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (1_048_575, 1_048_576, 2 * MIB),
        (1_048_576, 1_048_576, 2 * MIB),
        (1_048_577, 1_049_088, 20 * MIB),
        (10_485_248, 10_485_248, 20 * MIB),
        (10_485_249, 10_485_760, 10 * MIB),
        (20_971_519, 20_971_520, 20_971_520),
        (20_971_521, 20_972_032, 23_068_672),
        (33_554_433, 33_554_944, 35_651_584),
        (1_000_000_000, 1_000_341_504, 1_000_341_504),
    ],
)
def test_edges_of_block_and_segment_sizes(requested, block, reserved):
    allocator = CachingAllocator(total_bytes=80 * GIB)
    assert allocator.block_bytes(allocator.malloc(requested)) == block
    assert allocator.reserved == reserved
    assert allocator.requested == requested


@pytest.mark.parametrize(
    ("requested", "rounded"),
    [
        (1_200, 1_536),
        (2_048, 2_048),
        (2_049, 2_560),
        (3_000, 3_072),
        (5_000, 5_120),
        (1_048_577, 1_310_720),
        (5_242_881, 6_291_456),
        (9_437_184, 10_485_760),
        (1_395_864_371, 1_610_612_736),
    ],
)
def test_four_divisions_between_powers_of_two(requested, rounded):
    settings = AllocatorSettings.parse("roundup_power2_divisions:4")
    assert round_size(requested, settings.roundup_power2_divisions) == rounded


SIZES = (314_572_800, 629_145_601, 1_181_116_006, 2_469_606_195, 41_943_045)
LISTS = [
    (OLD, "[256:1,512:2,1024:2,>:1]", (314572800, 805306368, 1181116416, 2470445056, 41943552)),
    (NEW, "[256:1,512:2,1024:2,>:1]", (314572800, 805306368, 1610612736, 2470445056, 41943552)),
    (OLD, "[512:4,1024:2,>:8]", (335544320, 671088640, 1207959552, 2684354560, 50331648)),
    (NEW, "[512:4,1024:2,>:8]", (335544320, 671088640, 1610612736, 2684354560, 50331648)),
    (NEW, "[256:4,1024:2]", (335544320, 629146112, 1610612736, 2470445056, 50331648)),
    (NEW, "[64:8]", (314572800, 629146112, 1181116416, 2470445056, 46137344)),
]


@pytest.mark.parametrize(("release", "text", "blocks"), LISTS)
def test_lists_of_divisions(release, text, blocks):
    for requested, block in zip(SIZES, blocks, strict=True):
        allocator = CachingAllocator(
            total_bytes=80 * GIB, release=release, settings=f"roundup_power2_divisions:{text}"
        )
        assert allocator.block_bytes(allocator.malloc(requested)) == block


def test_a_column_is_rounded_as_single_sizes_are():
    sizes = np.array([1, 511, 512, 513, MIB, MIB + 1, 5_242_881, 10 * MIB, GIB + 1])
    for conf in ("", "roundup_power2_divisions:4"):
        divisions = AllocatorSettings.parse(conf).roundup_power2_divisions
        expected = [round_size(size, divisions) for size in sizes.tolist()]
        assert round_sizes(sizes, divisions).tolist() == expected


def test_oversize_requests_do_not_split_a_block():
    rounded = np.array([512, 2 * MIB, 200 * MIB])
    settings = AllocatorSettings.parse("max_split_size_mb:128")
    assert split_thresholds(
        rounded, settings.max_split_size, expandable=settings.expandable_segments
    )[:2].tolist() == [512, MIB + 1]
    assert (
        split_thresholds(rounded, settings.max_split_size, expandable=settings.expandable_segments)[
            2
        ]
        > 1 << 50
    )


def test_the_large_segment_size_can_be_chosen():
    assert segment_bytes(2 * MIB, 32 * MIB) == 32 * MIB
    assert segment_bytes(12 * MIB, 32 * MIB) == 12 * MIB
