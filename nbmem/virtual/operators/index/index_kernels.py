"""Reading and writing by index: copies of indices, and the sort that adds up equal ones.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/TensorAdvancedIndexing.cpp and
cuda/Indexing.cu, cuda/Nonzero.cu.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import LONG, drop, out, outs, temporary
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.operators.sorting import cub

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nbmem.virtual.operator_model.operator import Launch, Step

_MASKS = (torch.bool, torch.uint8)


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of its elements."""
    return tensor.numel() * tensor.element_size()


def _expanded(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return list(torch.broadcast_tensors(*(i for i in indices if i is not None)))


def _alike(indices: Sequence[torch.Tensor | None]) -> Iterator[Step]:
    """Several indices are copied where they do not lie alike once expanded (AdvancedIndex)."""
    given = _expanded(indices)
    if len({i.stride() for i in given}) > 1:
        for number, tensor in enumerate(given):
            if not tensor.is_contiguous():
                yield temporary(f"index {number}", tensor.numel() * LONG)


def _longs(launch: Launch) -> Iterator[Step]:
    """Indices of 32 bits are converted (expandTensors)."""
    for number, index in enumerate(launch["indices"]):
        if index is not None and index.dtype is torch.int32:
            yield temporary(f"long {number}", index.numel() * LONG)


def nonzero(launch: Launch) -> Iterator[Step]:
    """How many there are, read by the CPU; then their indices."""
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
"""Elements whose nonzero ones a block counts at a time."""
COUNTING_BLOCKS = 2
"""Of a multiprocessor."""


def nonzero_static(launch: Launch) -> Iterator[Step]:
    """The result, then for each block what it counts and where it begins to write."""
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
    """The result after the copies of its indices."""
    yield from _longs(launch)
    yield from _alike(launch["indices"])
    yield out()


def put(launch: Launch) -> Iterator[Step]:
    """Values are written where they belong, or sorted by their place and added up."""
    if launch.outs:
        yield out()
    given = [i for i in launch["indices"] if i is not None]
    if not given or any(i.dtype in _MASKS for i in given):
        return
    if launch["accumulate"]:
        yield from _sorted_sums(launch, _places(launch))
    else:
        yield from _longs(launch)
        yield from _alike(given)


def put_by_mask(launch: Launch, mask: torch.Tensor, found: int) -> Iterator[Step]:
    """Add where a mask holds (`x[mask] += y`): what it finds is dropped before the sort."""
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


def put_at_hosts(launch: Launch) -> Iterator[Step]:
    """Add at indices on the CPU: the number of each element comes to the card, for each index."""
    yield from outs(launch)
    size = _expanded(launch["indices"])[0].numel() * LONG
    places = []
    for number in range(sum(i is not None for i in launch["indices"])):
        places.append(temporary(f"place {number}", size))
        places += [drop(f"place {number}")] * bool(number)
    yield from _sorted_sums(launch, places)


def scatter_mean(launch: Launch) -> Iterator[Step]:
    """A mean's sums are divided by how many each is of, at least 1."""
    yield from outs(launch)
    if launch["reduce"] == "mean" and launch["src"].numel():
        yield temporary("ones", nbytes(launch["src"]))
        yield temporary("counts", nbytes(launch["self"]))
        yield temporary("is 0", launch["self"].numel())
        yield from (drop("is 0"), drop("counts"))


def index_mean(launch: Launch) -> Iterator[Step]:
    """As of a scatter, in another order."""
    yield from outs(launch)
    if launch["reduce"] == "mean" and launch["source"].numel():
        yield temporary("counts", nbytes(launch["self"]))
        yield temporary("ones", nbytes(launch["source"]))
        yield drop("ones")
        yield temporary("is 0", launch["self"].numel())
        yield drop("is 0")


def unfold_backward(launch: Launch) -> Iterator[Step]:
    """The places along the dimension that the windows were taken from, where they overlap."""
    yield out()
    size = launch["input_sizes"]
    if size and launch["step"] < launch["size"]:
        yield temporary("places", size[launch["dim"]] * LONG)


def masked_scatter(launch: Launch) -> Iterator[Step]:
    """Where each masked element's value is: how many come before it."""
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
    """One number for each element that is indexed, of its indices and strides.

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
    """Smallest and largest index, both read by the CPU (as the oracle has it)."""
    if not launch.rules.bounds_at_once:
        for name in ("largest", "smallest"):
            yield temporary(name, LONG)
            if not index.is_contiguous():
                yield temporary("contiguous", index.numel() * LONG)
            yield from staging.shared(index, range(index.dim()), LONG, launch.card)
            yield drop("contiguous")
            yield temporary("is out of range", 1)
            yield from (drop("is out of range"), drop(name))
        return
    yield from (temporary("smallest", LONG), temporary("largest", LONG))
    if not index.is_contiguous():
        yield temporary("contiguous", index.numel() * LONG)
    yield from staging.shared(index, range(index.dim()), 2 * LONG, launch.card)
    yield drop("contiguous")
    for name in ("is too small", "is too large"):
        yield from (temporary(name, 1), drop(name))
    yield from (drop("largest"), drop("smallest"))


def _sorted_sums(launch: Launch, places: Iterable[Step]) -> Iterator[Step]:
    """Index_put_with_sort_kernel: values in the order of their places, sorted by few bits."""
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
