"""Scratch memory of CUB's algorithms, by the rules of its dispatch layer.

https://github.com/NVIDIA/cccl/blob/v3.0.1/cub/cub/device/dispatch (contained in CUDA 13.0).
The names of the kernels in torch's library contain the types that it calls them with:
`cuobjdump -res-usage -arch sm_90 libtorch_cuda.so`. A rule with
another type is wrong by KiB. Tiles are those of the card's architecture:
nbmem/virtual/cub_tunings.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.allocator.torch_rules import rules_for
from nbmem.core.units import round_up

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

SEGMENT = 256
"""Every part of a scratch buffer begins at a multiple of this."""
WARP = 32
DIGITS = 256
"""Values of a digit of one pass of the radix sort: 8 bits."""
SINGLE_TILE = 256 * 19
"""Elements of four bytes that one block sorts by itself."""
PORTION = (1 << 28) - 1
"""Elements that one launch of the sort takes at most, in whole tiles."""
DIGIT_BITS = {1: 5, 2: 7}
"""Of the sort that counts digits first, by bytes of the key (PRIMARY_RADIX_BITS)."""
DIGIT_SCAN_TILE = 512 * 11
"""Counts that one block of it adds up (ScanPolicy)."""
SCAN_TILES = {1: 128 * 30, 2: 128 * 30, 4: 128 * 15, 8: 128 * 7, 16: 128 * 3}
"""By bytes of a sum. With a functor of torch's or of the language (SumOp, std::plus,
std::multiplies) no architecture is tuned."""
SELECT_TILE = 128 * 10
"""Of a type of torch's own (halves), which is not tuned."""
ENCODE_TILE = 128 * 6
"""Elements of a tile in run-length encoding with 64-bit counts, which is not tuned."""
REDUCE_BY_KEY_TILE = 128 * 9
"""Keys of eight bytes whose sums one block finds."""
MERGE_TILE = 256 * 8
"""Keys of eight bytes that one block sorts and merges, on every card."""
REDUCE_THREADS = 256
REDUCE_TILE = REDUCE_THREADS * 16
WAVES = 5
"""Waves of a launch: its blocks per block that runs at a time (subscription_factor)."""


def _tiles(count: int, tile: int) -> int:
    return -(-count // tile)


def parts(*sizes: int) -> int:
    """Return the bytes of a buffer with these parts (AliasTemporaries)."""
    return sum(round_up(size, SEGMENT) for size in sizes) + SEGMENT - 1


def tile_states(tiles: int, word: int, payload: int = 0) -> int:
    """Return the bytes of the tile states of a scan (ScanTileState).

    Blocks read their predecessors' sums in these states (look-back). The buffers are nested
    twice, except for sums of C++ types in the CUB of CUDA 12.

    Args:
        tiles: How many tiles there are.
        word: Bytes of a sum with its status: twice those of the sum.
        payload: Bytes of a sum of a type of torch's own, which is stored beside its status.
    """
    states = WARP + tiles
    if not payload and not rules_for(torch.__version__).tile_states_nested:
        return parts(states * word)
    return parts(parts(states * word, states * payload, states * payload))


def radix_sort(  # noqa: PLR0913 - as many as DeviceRadixSort takes
    card: Card,
    count: int,
    key: int,
    value: int = 0,
    bits: int | None = None,
    *,
    floats: bool = False,
) -> int:
    """Return the bytes for sorting keys and values (dispatch_radix_sort.cuh).

    The parts are histograms, look-back states, second buffers for more than one
    pass, and counters.

    Args:
        card: Its architecture has the tiles.
        count: Elements.
        key: Bytes of a key.
        value: Bytes of a value; 0: there are none.
        bits: How many bits of the key are sorted by; None: all.
        floats: Whether the keys are float32.
    """
    widest = max(key, value, 4)
    if count <= SINGLE_TILE // 19 * (19 * 4 // widest):
        return 1
    cub = card.arch.cub
    if key in DIGIT_BITS and cub.blocks_for_digits:
        return _sort_by_digits(card, count, key, value)
    threads, items = cub.float_keys if floats and not value else cub.sweeps[key, value]
    tile = threads * (items * 4 // widest)
    portion = PORTION // tile * tile
    passes = _tiles(8 * key if bits is None else bits, 8)
    portions = _tiles(count, portion)
    blocks = _tiles(min(count, portion), tile)
    again = count if passes > 1 else 0
    return parts(
        portions * passes * DIGITS * 8,
        blocks * DIGITS * 4,
        again * key,
        again * value,
        portions * passes * 4,
    )


def _sort_by_digits(card: Card, count: int, key: int, value: int) -> int:
    """Return the bytes of a radix sort that counts digits first.

    They are the digits' counts in as many blocks as run at a time, and second buffers.
    """
    blocks = card.processors * card.arch.cub.blocks_for_digits.get((key, value), 1) * WAVES
    counts = (blocks << DIGIT_BITS[key]) + DIGIT_SCAN_TILE
    return parts(counts * 8, count * key, count * value)


def segmented_sort(count: int, key: int, value: int) -> int:
    """Return the bytes for sorting many rows at once."""
    return parts(count * key, count * value)


def exclusive_sum(count: int, item: int) -> int:
    """Return the bytes for an exclusive sum (exclusive_sum_in_common_type)."""
    return tile_states(_tiles(count, SCAN_TILES[item]), 2 * item)


def cumulative(count: int, item: int, *, torch_type: bool) -> int:
    """Return the bytes for a cumulative sum or product of one row.

    Args:
        count: Elements.
        item: Bytes of one.
        torch_type: Whether the type is torch's (halves, complex numbers), not the language's.
    """
    tiles = _tiles(count, SCAN_TILES[item])
    return tile_states(tiles, 4, item) if torch_type else tile_states(tiles, max(4, 2 * item))


def inclusive_sum(card: Card, count: int) -> int:
    """Return the bytes for an inclusive sum of 32-bit numbers."""
    return tile_states(_tiles(count, card.arch.cub.inclusive_sum), 8)


def scan_by_key(card: Card, count: int, item: int) -> int:
    """Return the bytes for sums or maxima within runs of equal keys.

    Keys and sums have `item` bytes.
    """
    tiles = _tiles(count, card.arch.cub.scan_by_key[item])
    return parts((WARP + tiles) * 16, item * (tiles + 1))


def unique_by_key(card: Card, count: int, item: int) -> int:
    """Return the bytes for finding where keys change, with values as large."""
    return tile_states(_tiles(count, card.arch.cub.unique_by_key[item]), 16)


def merge_sort(count: int, key: int, value: int = 0) -> int:
    """Return the bytes for a merge sort by the caller's comparison.

    This is Thrust's sort (dispatch_merge_sort.cuh): buffers, and where in each tile of a merge
    its parts begin.
    """
    return parts(count * key, count * value, (_tiles(count, MERGE_TILE) + 1) * 4)


def thrust_unique_by_key(card: Card, count: int, item: int) -> int:
    """Return the bytes for finding where keys change, as Thrust does.

    The number of changes is stored beside.
    """
    tiles = _tiles(count, card.arch.cub.unique_by_key[item])
    return parts(tile_states(tiles, 8), 8)


def thrust_unique(card: Card, count: int, item: int) -> int:
    """Return the bytes for Thrust's `unique` by the caller's comparison.

    It drops elements that equal their predecessor.
    """
    tiles = _tiles(count, card.arch.cub.select[item])
    return parts(tile_states(tiles, 8), 8)


def thrust_reduce_by_key(count: int) -> int:
    """Return the bytes for Thrust's sums within runs of equal 8-byte keys."""
    return parts(tile_states(_tiles(count, REDUCE_BY_KEY_TILE), 8), 8)


def unique(card: Card, count: int, item: int, *, torch_type: bool) -> int:
    """Return the bytes for dropping elements that equal their predecessor.

    Args:
        card: Its architecture has the tile.
        count: Elements.
        item: Bytes of one.
        torch_type: Whether the type is torch's (halves), not the language's.
    """
    tile = SELECT_TILE if torch_type else card.arch.cub.select[item]
    return tile_states(_tiles(count, tile), 8)


def encode(count: int) -> int:
    """Return the bytes for run-length encoding.

    The result is what differs from its predecessor, and how often each occurs.
    """
    return parts((WARP + _tiles(count, ENCODE_TILE)) * 16)


def flagged(card: Card, count: int) -> int:
    """Return the bytes for the indices of nonzero elements."""
    return tile_states(_tiles(count, card.arch.cub.flagged), 8)


def count_nonzero(card: Card, count: int) -> int:
    """Return the bytes for a sum of 32-bit numbers.

    Its kernel has at most 32 registers, so the threads of a multiprocessor are the only limit
    to its blocks.
    """
    if count <= REDUCE_TILE:
        return 1
    blocks = card.processors * (card.multiprocessor.threads // REDUCE_THREADS)
    return parts(blocks * WAVES * 4)
