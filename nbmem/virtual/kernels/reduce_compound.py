"""Reductions whose accumulator is more than one number, or whose input is made for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.kernels.plan import Kernel, temporary
from nbmem.virtual.kernels.reduce import SOURCE, accumulator, dims_of, in_type_of_result, steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step


def both_extremes(launch: Launch) -> Iterator[Step]:
    """Smallest and largest at once."""
    tensor = launch["self"]
    yield from steps(launch, tensor, dims_of(launch, tensor), 2 * tensor.element_size())


def with_index(launch: Launch) -> Iterator[Step]:
    """An extreme and where it is: a value and a 64-bit index."""
    tensor = launch["self"]
    yield from steps(launch, tensor, dims_of(launch, tensor), 16)


def variance(launch: Launch) -> Iterator[Step]:
    """Welford's mean, sum of squares and two counts (WelfordData)."""
    tensor = launch["self"]
    yield from steps(launch, tensor, dims_of(launch, tensor), 4 * accumulator(tensor.dtype))


def count_nonzero(launch: Launch) -> Iterator[Step]:
    """A bool for each element unless it is one, then their sum."""
    tensor = launch["self"]
    if tensor.dtype is not torch.bool:
        yield temporary("is not zero", tensor.numel())
        tensor = torch.empty_like(tensor, dtype=torch.bool, device="meta")
    yield from in_type_of_result(launch, tensor, torch.int64)


def distance(launch: Launch) -> Iterator[Step]:
    """The norm of a difference."""
    tensor = launch["self"]
    yield temporary("difference", tensor.numel() * tensor.element_size())
    everything = range(tensor.dim())
    yield from steps(launch, tensor, everything, accumulator(tensor.dtype))


KERNELS = (
    Kernel(
        ops=("aminmax", "_aminmax"),
        rule=both_extremes,
        source=SOURCE + "; ReduceAMinMaxKernel.cu",
        shown_by="none of the H100's runs has one",
    ),
    Kernel(
        ops=("argmax", "argmin", "max.dim", "min.dim"),
        rule=with_index,
        source=SOURCE + "; ReduceArgMaxKernel.cu: argmax_kernel_cuda_impl",
        shown_by="none of the H100's runs has a large one",
    ),
    Kernel(
        ops=("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"),
        rule=variance,
        source=SOURCE + "; ReduceMomentKernel.cu: std_var_kernel_impl",
        shown_by="none of the H100's runs has a large one",
    ),
    Kernel(
        ops=("count_nonzero", "count_nonzero.dim_IntList"),
        rule=count_nonzero,
        source="aten/src/ATen/native/TensorAdvancedIndexing.cpp: count_nonzero_cuda",
        shown_by="none of the H100's runs has one; torch 2.13's CUDA build, run without a card",
    ),
    Kernel(
        ops=("dist",),
        rule=distance,
        source="aten/src/ATen/native/Distance.cpp: dist",
        shown_by="none of the H100's runs has one; torch 2.13's CUDA build, run without a card",
    ),
)
