"""Sort and selection: indices, double buffers and digit counts.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu,
TensorTopK.cu, Sorting.cpp and UniqueCub.cu
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import LONG, Operator, contiguous, drop, out, temporary
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.operators.sorting import cub
from nbmem.virtual.tensors.value_bounds import place
from nbmem.virtual.tensors.value_rules import ValueRule

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.operator_model.operator import Launch, Step

aten = torch.ops.aten

MAX_SORTED_IN_PLACE = 4096
"""Longest row, in elements, that is sorted in place."""
MIN_SORTED_ALONE = 1_000_000
"""Shortest row, in elements, that is sorted by a call of its own."""
MIN_SEGMENTED = 128
"""Fewest rows for which a segmented sort is used."""
THREADS = 256
DIGITS = 256
BLOCKS_PER_PROCESSOR = 6
"""A multiprocessor has 65,536 registers; a block takes 256 threads with 40 each."""
FEWEST_ITEMS, MOST_ITEMS = 4, 64
"""Elements that one thread searches."""
MIN_ROW_FOR_BLOCKS = (
    *((20, 20_000), (40, 10_000), (80, 8000), (199, 5000), (799, 3000), (4000, 800)),
)
"""Pairs: most rows, and elements from which each such row is split among blocks."""
MIN_ROW_OF_MANY = 400
"""Elements from which a row is split if there are more than 4000 rows."""


def sort(launch: Launch) -> Iterator[Step]:
    """Plan values and indices, then the scratch memory of these rows."""
    yield out(0)
    yield out(1)
    tensor = launch["self"]
    yield from _sort(launch.card, tensor, launch["dim"] if tensor.dim() else 0)


def _sort(card: Card, tensor: torch.Tensor, dim: int) -> Iterator[Step]:
    count, item = tensor.numel(), tensor.element_size()
    row = tensor.size(dim) if tensor.dim() else 1
    if not count:
        return
    if row <= MAX_SORTED_IN_PLACE:
        yield temporary("range", row * LONG)
        yield drop("range")
        return
    if tensor.stride(dim) != 1 or not tensor.is_contiguous():
        yield temporary("rows", count * item)
        yield temporary("sorted rows", count * item)
        yield temporary("indices of rows", count * LONG)
    yield from sort_rows(card, count // row, row, item)


def sort_rows(card: Card, rows: int, row: int, item: int) -> Iterator[Step]:
    """Plan the sort of contiguous rows (launch_stable_sort_kernel)."""
    count = rows * row
    if rows == 1 or row >= MIN_SORTED_ALONE:
        yield temporary("positions", row * LONG)
        for _ in range(rows):
            yield temporary("sort", cub.radix_sort(card, row, item, LONG))
            yield drop("sort")
    elif rows < MIN_SEGMENTED:
        yield temporary("positions", count * LONG)
        yield temporary("sorted positions", count * LONG)
        yield temporary("keys", count * item)
        yield temporary("sort", cub.radix_sort(card, count, item, LONG))
        yield drop("sort")
        yield drop("keys")
        bits = max(1, (rows - 1).bit_length())
        yield temporary("sort", cub.radix_sort(card, count, LONG, bits=bits))
        yield drop("sort")
        yield drop("sorted positions")
    else:
        yield temporary("positions", count * LONG)
        yield temporary("sort", cub.segmented_sort(count, item, LONG))
        yield drop("sort")
    yield drop("positions")


def topk(launch: Launch) -> Iterator[Step]:
    """Plan `topk`: values and indices, then the search of large inputs.

    Several blocks search each large row digit by digit.
    """
    yield out(0)
    yield out(1)
    tensor = launch["self"]
    dim = launch["dim"] if tensor.dim() else 0
    row = tensor.size(dim) if tensor.dim() else 1
    if not tensor.is_contiguous():
        yield temporary("contiguous", tensor.numel() * tensor.element_size())
    if not tensor.numel() or not launch["k"]:
        return
    rows = tensor.numel() // row
    if _uses_several_blocks(rows, row):
        yield from _radix_select(rows, row, tensor.element_size(), launch.card)
    if launch["sorted"] and launch["k"] > MAX_SORTED_IN_PLACE:
        yield from _sort_again(launch, rows, tensor.element_size())


def _uses_several_blocks(rows: int, row: int) -> bool:
    fits = (row >= length for most_rows, length in MIN_ROW_FOR_BLOCKS if rows <= most_rows)
    return next(fits, row >= MIN_ROW_OF_MANY)


def _radix_select(rows: int, row: int, item: int, card: Card) -> Iterator[Step]:
    """Plan the search with several blocks per row (mbtopk::launch)."""
    threads = card.processors * BLOCKS_PER_PROCESSOR * THREADS
    items = max(FEWEST_ITEMS, min(-(-rows * row // threads), MOST_ITEMS))
    blocks = rows * -(-row // (items * THREADS))
    bits = max(4, item)
    taken = {
        "kth values": rows * item,
        "ranks": 2 * rows * 4,
        "digits so far": 2 * rows * bits,
        "counts": blocks * DIGITS * 2,
        "sums of counts": rows * DIGITS * 4,
        "smaller": blocks * 4,
        "equal": blocks * 4,
    }
    for name, size in taken.items():
        yield temporary(name, size)
    for _ in range(2):
        yield temporary("sums", cub.scan_by_key(card, blocks, 4))
        yield drop("sums")
    for name in reversed(taken):
        yield drop(name)


def _sort_again(launch: Launch, rows: int, item: int) -> Iterator[Step]:
    """Plan the sort of the selection into copies, then a gather."""
    count = rows * launch["k"]
    yield temporary("sorted indices", count * LONG)
    yield temporary("sorted values", count * item)
    yield from sort_rows(launch.card, rows, launch["k"], item)
    yield temporary("gathered", count * LONG)


def median(launch: Launch) -> Iterator[Step]:
    """Plan a sort of all elements, then the result."""
    tensor = launch["self"]
    yield temporary("sorted", tensor.numel() * tensor.element_size())
    yield temporary("indices", tensor.numel() * LONG)
    yield from _sort(launch.card, tensor.reshape(-1), 0)
    yield drop("indices")
    if launch.call.func is torch.ops.aten.median.default:
        yield temporary("is nan", 1)
    else:
        yield temporary("are nan", tensor.numel())
        yield temporary("how many", LONG)
        if tensor.dtype is not torch.int64:
            yield temporary("counted", tensor.numel() * LONG)
        yield from staging.staging_steps(tensor.reshape(-1), [0], LONG, launch.card)
        yield drop("counted")
        yield from _median_position()
        yield drop("are nan")
    yield out()


def _median_position() -> Iterator[Step]:
    """Plan the median's position: half of the count of non-NaN elements.

    The half is computed through a float and rounded down.
    """
    yield temporary("numbers", LONG)
    yield temporary("half", 4)
    yield temporary("place", LONG)
    yield from (drop("half"), drop("numbers"), drop("how many"))


def mode(launch: Launch) -> Iterator[Step]:
    """Plan the results, then a contiguous copy with the dimension last."""
    yield from (out(0), out(1))
    tensor = launch["self"]
    if tensor.dim() and tensor.numel():
        yield from contiguous(tensor.transpose(launch["dim"], -1))


OPERATORS = (
    Operator(
        ("sort", "sort.stable"),
        memory=sort,
        values=ValueRule(below=place),
        source="aten/src/ATen/native/cuda/Sort.cpp: sort_cuda_kernel; SortStable.cu",
    ),
    Operator(
        ("topk",),
        memory=topk,
        values=ValueRule(below=place),
        source="aten/src/ATen/native/cuda/TensorTopK.cu: mbtopk::launch, should_use_multiblock",
    ),
    Operator(
        ("median", "nanmedian"),
        memory=median,
        source="aten/src/ATen/native/cuda/Sorting.cpp: median_impl",
    ),
    Operator(
        ("mode",),
        memory=mode,
        source="aten/src/ATen/native/cuda/TensorModeKernel.cpp: mode_kernel_impl",
    ),
)
