"""Scratch memory that CUB's algorithms ask for: its dispatch layer, as tuned for Hopper.

https://github.com/NVIDIA/cccl/blob/v3.0.1/cub/cub/device/dispatch (what CUDA 13.0 brings; the
names of the kernels in torch's library say with which types it calls them). Other cards have
tiles of other sizes, so that their scratch differs by some KiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

SEGMENT = 256
"""Every part of a scratch buffer begins at a multiple of this."""
WARP = 32
DIGITS = 256
"""Values of a digit of one pass of the radix sort: 8 bits."""
SORT_THREADS = 384
SINGLE_TILE = 256 * 19
"""Elements of four bytes that one block sorts by itself."""
PORTION = (1 << 28) - 1
"""Elements that one launch of the sort takes at most."""
SMALL_KEYS = {
    (1, 0): (512, 19), (1, 1): (448, 16), (1, 2): (512, 14), (1, 4): (512, 14), (1, 8): (384, 18),
    (2, 0): (512, 19), (2, 1): (384, 16), (2, 2): (448, 16), (2, 4): (512, 12), (2, 8): (512, 23),
}  # fmt: skip
"""Threads and nominal items of the radix sort by bytes of key and value: sm90_small_key_tuning."""
SCAN_TILES = {4: 128 * 24, 8: 224 * 12}
"""By bytes of a sum: sm90_tuning of tuning_scan.cuh, for CUDA's own plus."""
OTHER_SCAN_TILES = {1: 128 * 30, 2: 128 * 30, 4: 128 * 15, 8: 128 * 7, 16: 128 * 3}
"""With another functor (SumOp, std::plus, std::multiplies) nothing is tuned."""
UNIQUE_BY_KEY_TILE = 448 * 11
SUM_BY_KEY_TILE = 288 * 14
SELECT_TILES = {1: 256 * 22, 2: 256 * 22, 4: 384 * 17, 8: 384 * 11}
"""By bytes of an element: sm90_tuning of tuning_select_if.cuh, without flags."""
FLAGGED_TILE = 384 * 11
"""Indices of eight bytes that are selected by a flag."""
ENCODE_TILE = 128 * 6
"""Elements whose runs are counted in 64 bits, which is not tuned."""
REDUCE_THREADS = 256
REDUCE_TILE = REDUCE_THREADS * 16
REDUCE_WAVES = 5
"""How often the blocks that run at a time fit into those of a reduction (subscription_factor)."""


def _up(value: int, unit: int = SEGMENT) -> int:
    return -(-value // unit) * unit


def _tiles(count: int, tile: int) -> int:
    return -(-count // tile)


def parts(*sizes: int) -> int:
    """Bytes of one buffer that holds these parts (AliasTemporaries)."""
    return sum(_up(size) for size in sizes) + SEGMENT - 1


def tile_states(tiles: int, word: int, payload: int = 0) -> int:
    """What blocks that look back at their predecessors' sums share; nested twice (ScanTileState).

    Args:
        tiles: How many tiles there are.
        word: Bytes of a sum with its status: twice those of the sum.
        payload: Bytes of a sum of a type of torch's own, which lies beside its status.
    """
    states = WARP + tiles
    return parts(parts(states * word, states * payload, states * payload))


def radix_sort(count: int, key: int, value: int = 0, bits: int | None = None) -> int:
    """Bytes for sorting keys, with values where they have bytes (dispatch_radix_sort.cuh).

    Histograms, what blocks look back at, second buffers for more than one pass, and counters.

    Args:
        count: Elements.
        key: Bytes of a key.
        value: Bytes of a value; 0: there are none.
        bits: How many bits of the key are looked at; None: all.
    """
    widest = max(key, value, 4)
    if count <= SINGLE_TILE // 19 * (19 * 4 // widest):
        return 1
    passes = _tiles(8 * key if bits is None else bits, 8)
    portions = _tiles(count, PORTION)
    blocks = _tiles(min(count, PORTION), _sort_tile(key, value))
    again = count if passes > 1 else 0
    return parts(
        portions * passes * DIGITS * 8,
        blocks * DIGITS * 4,
        again * key,
        again * value,
        portions * passes * 4,
    )


def _sort_tile(key: int, value: int) -> int:
    if key == 8:
        threads, items = SORT_THREADS, 30 if value < 8 else 24
    elif key == 4:
        threads, items = SORT_THREADS, 19 if not value else 17 if value < 8 else 29
    else:
        threads, items = SMALL_KEYS.get((key, value), (SORT_THREADS, 23))
    return threads * (items * 4 // max(4, key, value))


def segmented_sort(count: int, key: int, value: int) -> int:
    """Bytes for sorting many rows at once."""
    return parts(count * key, count * value)


def exclusive_sum(count: int, item: int) -> int:
    """Bytes for the sums of all elements before each (exclusive_sum_in_common_type)."""
    return tile_states(_tiles(count, OTHER_SCAN_TILES[item]), 2 * item)


def cumulative(count: int, item: int, *, own: bool) -> int:
    """Bytes for a cumulative sum or product of one row.

    Args:
        count: Elements.
        item: Bytes of one.
        own: Whether the type is torch's (halves, complex numbers), not the language's.
    """
    tiles = _tiles(count, OTHER_SCAN_TILES[item])
    return tile_states(tiles, 4, item) if own else tile_states(tiles, max(4, 2 * item))


def inclusive_sum(count: int, item: int) -> int:
    """Bytes for the sums of all elements up to each."""
    return tile_states(_tiles(count, SCAN_TILES[item]), 2 * item)


def sum_by_key(count: int) -> int:
    """Bytes for sums within runs of equal keys, keys and sums of 32 bits."""
    tiles = _tiles(count, SUM_BY_KEY_TILE)
    return parts((WARP + tiles) * 16, 4 * (tiles + 1))


def unique_by_key(count: int) -> int:
    """Bytes for finding where keys of eight bytes change."""
    return tile_states(_tiles(count, UNIQUE_BY_KEY_TILE), 16)


def unique(count: int, item: int) -> int:
    """Bytes for dropping what equals its predecessor."""
    return tile_states(_tiles(count, SELECT_TILES[item]), 8)


def encode(count: int) -> int:
    """Bytes for what differs from its predecessor, and how often each occurs."""
    return parts((WARP + _tiles(count, ENCODE_TILE)) * 16)


def flagged(count: int) -> int:
    """Bytes for the indices of what is not zero."""
    return tile_states(_tiles(count, FLAGGED_TILE), 8)


def count_nonzero(count: int, card: Card) -> int:
    """Bytes for a sum of 32-bit numbers; its kernel has at most 32 registers, so blocks fit."""
    if count <= REDUCE_TILE:
        return 1
    blocks = card.processors * (card.multiprocessor.threads // REDUCE_THREADS)
    return parts(blocks * REDUCE_WAVES * 4)
