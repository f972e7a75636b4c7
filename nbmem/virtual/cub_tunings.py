"""Tile sizes of CUB's algorithms, by the compiled architecture.

From https://github.com/NVIDIA/cccl/tree/f19d875da0d8bfb2e38c109b2b40522b8abbbbc3/cub/cub/device
/dispatch/tuning (v3.0.1, contained in CUDA 13.0). A file there has one policy for each architecture
that was tuned. Code for another architecture takes the next lower policy. Types and functors that
were not tuned take a default, the same on all (`nbmem.virtual.operators.sorting.cub`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Sweep = tuple[int, int]
    ByPair = Mapping[tuple[int, int], Sweep]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cub:
    """Tiles in elements, by element size for algorithms with several sizes.

    Attributes:
        sweeps: Threads of a block and items of four bytes of each, by bytes of a radix sort's key
            and of its value (0: keys alone).
        float_keys: The same for float32 without values, which Hopper has a tuning for.
        blocks_for_digits: Keys that are not sorted in one sweep but by counting digits first, by
            the same pair: how many blocks of that kernel a multiprocessor holds, by the registers
            that it has in torch 2.13.0+cu130. Empty: all are sorted in one sweep.
        inclusive_sum: Of 32-bit numbers, with CUDA's own plus.
        select: What differs from its predecessor.
        flagged: Indices of eight bytes that a flag selects.
        unique_by_key: Keys and values of that size.
        scan_by_key: The same.
    """

    sweeps: ByPair
    float_keys: Sweep
    blocks_for_digits: Mapping[tuple[int, int], int]
    inclusive_sum: int
    select: dict[int, int]
    flagged: int
    unique_by_key: Mapping[int, int]
    scan_by_key: Mapping[int, int]


VALUES = (0, 1, 2, 4, 8)


def _sweeps(every: Sweep, **of_key: Mapping[int, Sweep]) -> ByPair:
    """Make the sweeps of all key and value sizes, with exceptions by key.

    `key_4={8: ...}` is for keys of 4 bytes with values of 8 bytes.
    """
    found = {(key, value): every for key in (1, 2, 4, 8) for value in VALUES}
    for name, by_value in of_key.items():
        found |= {(int(name[-1]), value): sweep for value, sweep in by_value.items()}
    return found


VOLTA = Cub(
    sweeps=_sweeps((256, 23), key_4={4: (256, 46)}),
    float_keys=(256, 23),
    blocks_for_digits={(1, 0): 3, (1, 8): 2, (2, 0): 1, (2, 8): 1},
    inclusive_sum=128 * 15,
    select={1: 128 * 10, 2: 128 * 10, 4: 128 * 10, 8: 128 * 5},
    flagged=128 * 5,
    unique_by_key={4: 64 * 11, 8: 64 * 5},
    scan_by_key={4: 256 * 9, 8: 256 * 9},
)
"""sm_70 and sm_75: but for the sort nothing is tuned."""

PASCAL = replace(VOLTA, sweeps=_sweeps((256, 30)), float_keys=(256, 30))
"""sm_60 and sm_61. torch for CUDA 13 has no code for them, so the number of blocks is unknown."""

AMPERE = replace(
    VOLTA,
    sweeps=_sweeps((384, 21), key_4=dict.fromkeys(VALUES[1:], (384, 17))),
    float_keys=(384, 21),
    blocks_for_digits={(1, 0): 2, (1, 8): 3, (2, 0): 1, (2, 8): 1},
)
"""sm_86, which Ada runs, too: for it nothing else is tuned again."""

A100 = replace(
    AMPERE,
    inclusive_sum=320 * 12,
    select={1: 992 * 20, 2: 576 * 14, 4: 256 * 18, 8: 192 * 10},
    flagged=384 * 6,
    unique_by_key={4: 256 * 11, 8: 192 * 7},
    scan_by_key={4: 256 * 15, 8: 224 * 10},
)
"""sm_80."""

_LARGE_KEYS = {
    "key_4": {0: (384, 19), 1: (384, 17), 2: (384, 17), 4: (384, 17), 8: (384, 29)},
    "key_8": {0: (384, 30), 1: (384, 30), 2: (384, 30), 4: (384, 30), 8: (384, 24)},
}

HOPPER = Cub(
    sweeps=_sweeps(
        (384, 23),
        key_1={0: (512, 19), 1: (448, 16), 2: (512, 14), 4: (512, 14), 8: (384, 18)},
        key_2={0: (512, 19), 1: (384, 16), 2: (448, 16), 4: (512, 12), 8: (512, 23)},
        **_LARGE_KEYS,
    ),
    float_keys=(384, 18),
    blocks_for_digits={},
    inclusive_sum=128 * 24,
    select={1: 256 * 22, 2: 256 * 22, 4: 384 * 17, 8: 384 * 11},
    flagged=384 * 11,
    unique_by_key={4: 512 * 14, 8: 448 * 11},
    scan_by_key={4: 288 * 14, 8: 224 * 11},
)
"""sm_90."""

BLACKWELL = replace(
    HOPPER,
    sweeps=_sweeps(
        (384, 23),
        key_1={0: (512, 19), 1: (384, 20), 2: (256, 22), 4: (384, 15), 8: (384, 18)},
        key_2={0: (384, 20), 1: (384, 15), 2: (576, 15), 4: (512, 18), 8: (512, 23)},
        **_LARGE_KEYS,
    ),
    select=HOPPER.select | {1: 384 * 22, 4: 384 * 15},
    flagged=320 * 11,
    scan_by_key={4: 224 * 20, 8: 256 * 23},
)
"""sm_100 and whatever is newer."""
