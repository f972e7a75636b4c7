"""Reading and writing by index: copies of indices, and sorted sums.

Equal indices are sorted before their values are added up.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/TensorAdvancedIndexing.cpp and
cuda/Indexing.cu, cuda/Nonzero.cu.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import torch

from nbmem.virtual.operator_model.operator import LONG, Launch, Step, drop, out, outs, temporary
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.operators.sorting import cub

_MASKS = (torch.bool, torch.uint8)


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _expanded(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return list(torch.broadcast_tensors(*(i for i in indices if i is not None)))


def _same_strides(indices: Sequence[torch.Tensor | None]) -> Iterator[Step]:
    """Yield copies of indices whose strides differ (AdvancedIndex).

    Strides are compared once the indices are expanded. Contiguous indices are not copied.
    """
    given = _expanded(indices)
    if len({i.stride() for i in given}) > 1:
        for number, tensor in enumerate(given):
            if not tensor.is_contiguous():
                yield temporary(f"index {number}", tensor.numel() * LONG)


def _longs(launch: Launch) -> Iterator[Step]:
    """Yield 64-bit copies of 32-bit indices (expandTensors)."""
    for number, index in enumerate(launch["indices"]):
        if index is not None and index.dtype is torch.int32:
            yield temporary(f"long {number}", index.numel() * LONG)


def nonzero(launch: Launch) -> Iterator[Step]:
    """Yield the count, which the CPU reads, then the indices."""
    tensor = launch["self"]
    if not tensor.is_contiguous():
        yield temporary("contiguous", nbytes(tensor))
    yield temporary("found", 4)
    yield temporary("sum", cub.count_nonzero(launch.card, tensor.numel()))
    yield drop("sum")
    if launch.outs:
        yield out()
    if tensor.dim():
        yield temporary("flags", cub.flagged(launch.card, tensor.numel()))


COUNTED = 512 * 16
"""Elements in which a block counts the nonzero ones at a time."""
COUNTING_BLOCKS = 2
"""Of a multiprocessor."""


def nonzero_static(launch: Launch) -> Iterator[Step]:
    """Yield the result, then the count and the offset of each block."""
    tensor = launch["self"]
    yield out()
    if not (tensor.numel() and launch.outs[0].nbytes):
        return
    if not tensor.is_contiguous():
        yield temporary("contiguous", nbytes(tensor))
    tiles = -(-tensor.numel() // COUNTED)
    blocks = -(-tiles // -(-tiles // (COUNTING_BLOCKS * launch.card.processors)))
    yield temporary("counts", blocks * 4)
    yield temporary("begins", blocks * LONG)
    yield from (drop("begins"), drop("counts"))


def get(launch: Launch) -> Iterator[Step]:
    """Yield the copies of the indices, then the result."""
    yield from _longs(launch)
    yield from _same_strides(launch["indices"])
    yield out()


def put(launch: Launch) -> Iterator[Step]:
    """Yield the result, and the copies or the sort that writing needs.

    Values are written to their indices, or sorted by their flat index and added up.
    """
    if launch.outs:
        yield out()
    given = [i for i in launch["indices"] if i is not None]
    if not given or any(i.dtype in _MASKS for i in given):
        return
    if launch["accumulate"]:
        yield from _sorted_sums(launch, _places(launch))
    else:
        yield from _longs(launch)
        yield from _same_strides(given)


def put_by_mask(launch: Launch, mask: torch.Tensor, found: int) -> Iterator[Step]:
    """Yield the steps of adding where a mask holds (`x[mask] += y`).

    The indices that the mask selects are freed before the sort.
    """
    if launch.outs:
        yield out()
    yield temporary("found", 4)
    yield temporary("sum", cub.count_nonzero(launch.card, mask.numel()))
    yield drop("sum")
    yield temporary("mask", found * mask.dim() * LONG)
    yield temporary("flags", cub.flagged(launch.card, mask.numel()))
    yield drop("flags")
    yield drop("found")
    if found:
        yield from _sorted_sums(launch, [*_places(launch), drop("mask")])


def put_at_cpu_indices(launch: Launch) -> Iterator[Step]:
    """Yield the steps of adding at indices on the CPU.

    For each index, the number of each element is copied to the card.
    """
    yield from outs(launch)
    size = _expanded(launch["indices"])[0].numel() * LONG
    places = []
    for number in range(sum(i is not None for i in launch["indices"])):
        places.append(temporary(f"place {number}", size))
        places += [drop(f"place {number}")] * bool(number)
    yield from _sorted_sums(launch, places)


def scatter_mean(launch: Launch) -> Iterator[Step]:
    """Yield the counts by which the sums of a mean are divided.

    A count is at least 1.
    """
    yield from outs(launch)
    if launch["reduce"] == "mean" and launch["src"].numel():
        yield temporary("ones", nbytes(launch["src"]))
        yield temporary("counts", nbytes(launch["self"]))
        yield temporary("is 0", launch["self"].numel())
        yield from (drop("is 0"), drop("counts"))


def index_mean(launch: Launch) -> Iterator[Step]:
    """Yield the counts of an `index_reduce` mean.

    Allocations are those of a scatter's mean, in another order.
    """
    yield from outs(launch)
    if launch["reduce"] == "mean" and launch["source"].numel():
        yield temporary("counts", nbytes(launch["self"]))
        yield temporary("ones", nbytes(launch["source"]))
        yield drop("ones")
        yield temporary("is 0", launch["self"].numel())
        yield drop("is 0")


def unfold_backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradient and, for overlapping windows, their places.

    They are the indices along the dimension that the windows were taken from.
    """
    yield out()
    size = launch["input_sizes"]
    if size and launch["step"] < launch["size"]:
        yield temporary("places", size[launch["dim"]] * LONG)


def masked_scatter(launch: Launch) -> Iterator[Step]:
    """Yield the result and the place of each masked element's value.

    That is the number of masked elements before it.
    """
    if launch.outs:
        yield out()
    size = torch.broadcast_shapes(launch["self"].size(), launch["mask"].size())
    mask, source = launch["mask"].expand(size), launch["source"]
    yield temporary("before", mask.numel() * LONG)
    if not mask.is_contiguous():
        yield temporary("mask", nbytes(mask))
    yield temporary("sum", cub.exclusive_sum(mask.numel(), LONG))
    yield drop("sum")
    if not source.is_contiguous():
        yield temporary("source", nbytes(source))


def _places(launch: Launch) -> Iterator[Step]:
    """Yield one number for each indexed element, of its indices and strides.

    computeLinearIndex; indices from the program are checked, those of a backward pass are not.
    """
    given = _expanded(launch["indices"])
    size = given[0].numel() * LONG
    yield from _longs(launch)
    for number in range(len(given)):
        if not launch["unsafe"]:
            yield from _range_check(launch, given[number])
        product = f"place {number}" if number else "places"
        yield temporary("remainder", size)
        yield temporary(product, size)
        yield drop("remainder")
        if number:
            yield drop(product)
    for number in range(len(launch["indices"])):
        yield drop(f"long {number}")


def _range_check(launch: Launch, index: torch.Tensor) -> Iterator[Step]:
    """Yield the smallest and the largest index, which the CPU reads.

    The steps are those of the oracle.
    """
    if not launch.rules.bounds_at_once:
        for name in ("largest", "smallest"):
            yield temporary(name, LONG)
            if not index.is_contiguous():
                yield temporary("contiguous", index.numel() * LONG)
            yield from staging.staging_steps(index, range(index.dim()), LONG, launch.card)
            yield drop("contiguous")
            yield temporary("is out of range", 1)
            yield from (drop("is out of range"), drop(name))
        return
    yield from (temporary("smallest", LONG), temporary("largest", LONG))
    if not index.is_contiguous():
        yield temporary("contiguous", index.numel() * LONG)
    yield from staging.staging_steps(index, range(index.dim()), 2 * LONG, launch.card)
    yield drop("contiguous")
    for name in ("is too small", "is too large"):
        yield from (temporary(name, 1), drop(name))
    yield from (drop("largest"), drop("smallest"))


def _sorted_sums(launch: Launch, places: Iterable[Step]) -> Iterator[Step]:
    """Yield the sort by which values are added up in the order of places.

    index_put_with_sort_kernel; the sort reads only as many bits as the indices have.
    """
    target, values = launch["self"], launch["values"]
    indexed = [n for n, i in enumerate(launch["indices"]) if i is not None]
    count = _expanded(launch["indices"])[0].numel()
    rest = prod(s for n, s in enumerate(target.size()) if n not in indexed)
    if not target.is_contiguous():
        yield temporary("target", nbytes(target))
    yield from places
    if not values.is_contiguous() or values.numel() < count * rest:
        yield temporary("values", count * rest * values.element_size())
    if not count or not rest:
        return
    apart = indexed[-1] - indexed[0] >= len(indexed)
    if apart:
        yield temporary("indexed dimensions first", nbytes(target))
    for name in ("sorted", "original", "range"):
        yield temporary(name, count * LONG)
    largest = (target.numel() - 1) // (rest if apart else prod(target.size()[indexed[-1] + 1 :]))
    bits = max(1, largest.bit_length())
    yield temporary("sort", cub.radix_sort(launch.card, count, LONG, LONG, bits))
    yield drop("sort")
    yield drop("range")
