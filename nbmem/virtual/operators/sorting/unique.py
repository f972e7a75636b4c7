"""Unique values, found by a sort or in runs of equal values, and isin.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cuda/UniqueCub.cu
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.operator_model.operator import (
    HALVES,
    LONG,
    Operator,
    by_parts,
    drop,
    out,
    temporary,
)
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.operators.sorting import cub
from nbmem.virtual.tensors.shapes import Results, spec_of
from nbmem.virtual.tensors.value_bounds import below_of
from nbmem.virtual.warnings import UNIQUE

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def unique_kernel(launch: Launch) -> Iterator[Step]:
    """Plan `_unique2`: a sort, then the values that differ.

    With the inverse, indices are sorted along.
    """
    tensor = launch["self"]
    count, item = tensor.numel(), tensor.element_size()
    inverse = launch["return_inverse"]
    if not count:
        return
    if not tensor.is_contiguous():
        yield temporary("contiguous", count * item)
    if tensor.dtype is torch.bool:
        yield from _unique_bools(launch)
        return
    yield temporary("sorted", count * item)
    if inverse:
        yield temporary("range", count * LONG)
        yield temporary("positions", count * LONG)
    floats = tensor.dtype is torch.float32
    value = LONG if inverse else 0
    sort = cub.radix_sort(launch.card, count, item, value, floats=floats)
    yield from _scratch("sort", sort)
    if inverse:
        yield drop("range")
        yield out(1)
        yield temporary("numbers", count * LONG)
        yield from _scratch("sums", cub.inclusive_sum(launch.card, count))
        yield drop("numbers")
    yield from _differing_values(launch)


def _differing_values(launch: Launch) -> Iterator[Step]:
    """Plan the values that differ from their predecessor, and their counts."""
    tensor = launch["self"]
    count, item = tensor.numel(), tensor.element_size()
    yield out(0)
    yield temporary("length", LONG)
    if launch["return_counts"]:
        yield out(2)
        yield temporary("unique", cub.encode(count))
    else:
        torch_type = tensor.dtype in HALVES
        yield temporary("unique", cub.unique(launch.card, count, item, torch_type=torch_type))


def unique_consecutive(launch: Launch) -> Iterator[Step]:
    """Plan `unique_consecutive`: the values that differ.

    The inverse is a sum over the flags of where that is.
    """
    count = launch["self"].numel()
    if launch["dim"] is not None:
        yield from unique_rows(launch)
        return
    if not count:
        return
    if launch["return_inverse"]:
        yield out(1)
        yield temporary("differs", count * 4)
        yield from _scratch("sums", cub.inclusive_sum(launch.card, count))
        yield drop("differs")
    yield from _differing_values(launch)


def unique_rows(launch: Launch) -> Iterator[Step]:
    """Plan `unique_dim`: row numbers are sorted by the rows' content.

    Row numbers are retained where the content differs.

    By Thrust: unique_dim_cuda_template, compute_unique.
    """
    tensor, dim = launch["self"], launch["dim"]
    count = tensor.size(dim)
    if not count:
        return
    rows = tensor.moveaxis(dim, 0)
    if not rows.is_contiguous():
        yield temporary("rows", rows.numel() * rows.element_size())
    yield temporary("numbers", count * LONG)
    if launch.call.func is aten.unique_dim.default:
        yield from _scratch("sort", cub.merge_sort(count, LONG))
    if launch["return_inverse"]:
        yield out(1)
        yield temporary("differs", count * LONG)
        yield from _scratch("differences", cub.parts(0))
        yield from _scratch("sums", cub.cumulative(count, LONG, torch_type=False))
        yield drop("differs")
    if launch["return_counts"]:
        yield temporary("range", (count + 1) * LONG)
        yield from _scratch("unique", cub.thrust_unique_by_key(launch.card, count, LONG))
        yield out(2)
        yield from _scratch("differences", cub.parts(0))
        yield drop("range")
    else:
        yield from _scratch("unique", cub.thrust_unique(launch.card, count, LONG))
    yield out(0)
    yield from (drop("numbers"), drop("rows"))


def _scratch(name: str, nbytes: int) -> Iterator[Step]:
    yield temporary(name, nbytes)
    yield drop(name)


def _unique_bools(launch: Launch) -> Iterator[Step]:
    """Plan a count of the true values."""
    yield temporary("true", 4)
    yield temporary("sum", cub.count_nonzero(launch.card, launch["self"].numel()))
    yield drop("sum")
    yield out(0)
    yield temporary("counts", 2 * LONG)
    yield out(1)


def unique(executor: Executor, call: OperatorCall) -> Any:
    """Run a unique operator; unknown values count as all different.

    There are at most as many as there are elements or rows. Known bounds make it less.
    """
    tensor, dim = call.args[0], call.argument("dim")
    cpu_values = executor.values.cpu_values(tensor)
    if cpu_values is not None:
        with _C._DisableTorchDispatch():
            args, kwargs = call.map(lambda _: cpu_values)
            found = int(call.func(*args, **kwargs)[0].size(dim or 0))
    else:
        call.gpu.note(UNIQUE)
        found = tensor.numel() if dim is None else tensor.size(dim)
        anywhere = call.func is aten._unique2.default
        bound = below_of(executor.values, tensor) if anywhere else None
        found = found if bound is None else min(found, bound)
    size = [found]
    if dim is not None:
        size = list(tensor.size())
        size[dim] = found
    whole = tuple(tensor.size()) if dim is None else (tensor.size(dim),)
    counts = found if call.argument("return_counts") else 0
    specs = [
        spec_of(tuple(size), tensor.dtype, 0),
        spec_of(whole if call.argument("return_inverse") else (0,), torch.int64, 1),
        spec_of((counts,), torch.int64, 2),
    ]
    cut = call.func is aten._unique2.default and tensor.dtype is not torch.bool
    if cut or (call.func is aten.unique_consecutive.default and dim is None):
        # They are cut to size in storages that were made for the case that all differ.
        specs[0] = replace(specs[0], nbytes=tensor.numel() * tensor.element_size())
        specs[2] = replace(specs[2], nbytes=tensor.numel() * 8 if counts else 0)
    return executor.deliver(call, Results(tuple(specs), tuple(specs)))


def unique_without_counts(
    tensor: torch.Tensor,
    sorted: bool = True,  # noqa: A002, FBT001, FBT002 - torch's signature
    return_inverse: bool = False,  # noqa: FBT001, FBT002
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `_unique`, as the derivative of index_fill does."""
    values, inverse, _ = aten._unique2.default(tensor, sorted, return_inverse)
    return values, inverse


FEW, GROWTH = 10, 0.145
"""Values that are searched one by one: fewer than this times a power of the number of elements."""


def _are_few(call: OperatorCall) -> bool:
    count, looked_for = (call.argument(n).numel() for n in ("elements", "test_elements"))
    return bool(looked_for < FEW * count**GROWTH)


def check_is_in(call: OperatorCall) -> None:
    """Refuse bools in `isin`, in torch's words."""
    for name in ("elements", "test_elements"):
        if call.argument(name).dtype is torch.bool:
            raise RuntimeError("Unsupported input type encountered for isin(): Bool")


def isin_sorting(executor: Executor, call: OperatorCall) -> Any:
    """Run `isin` with a sort, unless there are few test elements.

    A value that is found twice is in both.

    aten/src/ATen/native/TensorCompare.cpp: isin_sorting
    """
    check_is_in(call)
    if _are_few(call):
        return NotImplemented
    elements, looked_for = call.argument("elements"), call.argument("test_elements")
    with executor:
        made = torch.empty(elements.size(), dtype=torch.bool, device=elements.device)
        if call.argument("assume_unique"):
            order = None
            every = aten.cat.default([elements.ravel(), looked_for.ravel()])
        else:
            values, order, _ = aten._unique2.default(elements, False, True)
            others = aten._unique2.default(looked_for, False)[0]
            every = aten.cat.default([values, others])
            del others, values
        ordered, places = every.sort(stable=True)
        twice = torch.empty_like(ordered, dtype=torch.bool)
        twice[:-1].copy_(ordered[1:] == ordered[:-1])
        mask = torch.empty_like(twice)
        mask.index_copy_(0, places, twice)
        found = mask[: elements.numel()] if order is None else aten.index.Tensor(mask, [order])
        made.view(-1).copy_(found.view(-1))
        del found, mask, twice, ordered, places, every, order
        return made


def isin_pairwise(launch: Launch) -> Iterator[Step]:
    """Plan `isin` with few test elements: a mask of all pairs.

    isin_default_kernel_gpu
    """
    yield out()
    count, looked_for = launch["elements"].numel(), launch["test_elements"].numel()
    if count and _are_few(launch.call):
        pairs = torch.empty((count, looked_for), device="meta", dtype=torch.bool)
        yield temporary("pairs", pairs.numel())
        yield temporary("any", count)
        yield from staging.staging_steps(pairs, [1], 1, launch.card)


OPERATORS = (
    Operator(
        ("isin.Tensor_Tensor",),
        run=isin_sorting,
        memory=isin_pairwise,
        source="aten/src/ATen/native/TensorCompare.cpp: TORCH_IMPL_FUNC(isin_Tensor_Tensor_out)",
    ),
    Operator(
        ("_unique",),
        run=by_parts(unique_without_counts),
        source="aten/src/ATen/native/cuda/Unique.cu: _unique_cuda",
    ),
    Operator(
        ("_unique2",),
        run=unique,
        memory=unique_kernel,
        source="aten/src/ATen/native/cuda/UniqueCub.cu: unique_cuda_template, compute_unique",
    ),
    Operator(
        ("unique_consecutive",),
        run=unique,
        memory=unique_consecutive,
        source="aten/src/ATen/native/cuda/UniqueCub.cu: compute_unique",
    ),
    Operator(
        ("unique_dim", "unique_dim_consecutive"),
        run=unique,
        memory=unique_rows,
        source="aten/src/ATen/native/cuda/Unique.cu: unique_dim_cuda_template",
    ),
)
