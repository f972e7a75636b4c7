"""Constants of the allocator, and the rounding of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.units import MIB

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints

# The constants below are those of
# https://github.com/pytorch/pytorch/blob/v2.13.0/c10/core/AllocatorConfig.h and, up to 2.9, of
# https://github.com/pytorch/pytorch/blob/v2.9.1/c10/cuda/CUDACachingAllocator.cpp
MIN_BLOCK = 512
"""kMinBlockSize: every block is a multiple of this."""
SMALL_LIMIT = MIB
"""kSmallSize: rounded sizes up to and including this come from the small pool."""
SMALL_SEGMENT = 2 * MIB
"""kSmallBuffer: segment size of the small pool, and the granule of its expandable segments."""
LARGE_SEGMENT = 20 * MIB
"""kLargeBuffer: segment size for requests below LARGE_ALONE."""
LARGE_ALONE = 10 * MIB
"""kMinLargeAlloc: a request of this size or more gets a segment of its own."""
LARGE_STEP = 2 * MIB
"""kRoundLarge: to which such segments are rounded."""
TOO_LARGE = 1 << 60
"""A request of 1 EiB or more fails at once."""

NO_DIVISIONS: tuple[int, ...] = (0,) * 16
"""roundup_power2_divisions when it is not set."""


def round_size(size: int, divisions: tuple[int, ...] = NO_DIVISIONS) -> int:
    """Return the bytes of the block that a request looks for.

    The block that is found may be larger.

    Args:
        size: Requested bytes, at least 1.
        divisions: Entry i is for sizes of 2**(20+i) up to 2**(21+i) bytes. The first is also for
            all sizes below, the last for all above. 0 and 1 mean plain rounding.
    """
    if size < MIN_BLOCK:
        return MIN_BLOCK
    parts = divisions[min(max(size.bit_length() - 21, 0), 15)]
    if parts > 1 and size > MIN_BLOCK * parts:
        floor = 1 << (size.bit_length() - 1)
        if size == floor:
            return size
        step = floor // parts
        return -(-size // step) * step if step else 2 * floor
    return (size + MIN_BLOCK - 1) & -MIN_BLOCK


def segment_bytes(rounded: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Return the bytes to request from the driver for a rounded request.

    It is used when no cached block serves the request.
    """
    if rounded <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if rounded < LARGE_ALONE:
        return large_segment
    return -(-rounded // LARGE_STEP) * LARGE_STEP


def round_sizes(sizes: Ints, divisions: tuple[int, ...] = NO_DIVISIONS) -> Ints:
    """Apply `round_size` to a column."""
    rounded: Ints = np.maximum((sizes + MIN_BLOCK - 1) & -MIN_BLOCK, MIN_BLOCK)
    if max(divisions) > 1:
        different, back = np.unique(sizes, return_inverse=True)
        exact = [round_size(size, divisions) for size in different.tolist()]
        rounded = np.array(exact, np.int64)[back]
    return rounded


def split_thresholds(rounded: Ints, max_split_size: int | None, *, expandable: bool) -> Ints:
    """Return the least remainder at which a free piece is split.

    There is one value for each rounded request. Expandable segments split at once, as the small
    pool does. A pool that never splits is not distinguished.

    Args:
        rounded: Rounded requests in bytes, shape (n,).
        max_split_size: As in `AllocatorSettings`.
        expandable: Whether segments are expandable.
    """
    if expandable:
        return np.full(len(rounded), MIN_BLOCK, np.int64)
    least = np.where(rounded <= SMALL_LIMIT, MIN_BLOCK, SMALL_LIMIT + 1)
    if max_split_size is not None:
        least[rounded >= max_split_size] = TOO_LARGE
    return least
