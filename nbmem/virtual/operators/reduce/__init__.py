"""Reductions: accumulator types, and staging between thread blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import HALVES, Operator, drop, outs, temporary
from nbmem.virtual.operators.reduce.staging import (
    accumulator_bytes,
    dims_of,
    outs_and_staging,
    staging_steps,
)
from nbmem.virtual.tensors import assumptions
from nbmem.virtual.tensors.shapes import several
from nbmem.virtual.tensors.value_bounds import as_before, entries, place, summed
from nbmem.virtual.tensors.value_rules import (
    ValueRule,
    always,
    counted_up,
    nonzero_health,
    same_health,
)

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.shapes import Results


def _shape_aminmax(call: OperatorCall) -> Results:
    tensor, dim = call.args[0], call.argument("dim")
    size = list(tensor.size())
    if dim is None:
        size = []
    elif size:
        size[dim : dim % len(size) + 1] = [1] if call.argument("keepdim") else []
    return several((size, tensor.dtype), (size, tensor.dtype))


def total(launch: Launch) -> Iterator[Step]:
    """Plan sums, means and products in the result's type (make_reduction)."""
    tensor = launch["self"]
    result = launch.outs[0].dtype if launch.outs else tensor.dtype
    yield from _in_type_of_result(launch, tensor, result)


def _in_type_of_result(launch: Launch, tensor: torch.Tensor, result: torch.dtype) -> Iterator[Step]:
    """Plan a reduction of the input in the result's type.

    Masks and small integers are converted to 64-bit integers first. Halves are read as float32
    without a copy.
    """
    yield from outs(launch)
    if tensor.dtype is not result and not (tensor.dtype in HALVES and result is torch.float32):
        yield temporary("converted", tensor.numel() * result.itemsize)
        tensor = torch.empty(tensor.size(), dtype=result, device="meta")
    yield from staging_steps(
        tensor, dims_of(launch, tensor), accumulator_bytes(result), launch.card
    )


def norm(launch: Launch) -> Iterator[Step]:
    """Plan norms, which accumulate in float32 for half types.

    A norm in float64 is of a copy, if the input has another type.
    """
    tensor = launch["self"]
    if launch.outs and launch.outs[0].dtype is torch.float64 and not tensor.is_complex():
        yield from _in_type_of_result(launch, tensor, torch.float64)
        return
    yield from outs_and_staging(
        launch, tensor, dims_of(launch, tensor), accumulator_bytes(tensor.dtype)
    )


def extremes(launch: Launch) -> Iterator[Step]:
    """Plan extremes, which accumulate in the type of their input.

    Halves do so, too.
    """
    tensor = launch["self"]
    yield from outs_and_staging(launch, tensor, dims_of(launch, tensor), tensor.element_size())


def logical(launch: Launch) -> Iterator[Step]:
    """Plan any() and all(), which accumulate bools for every input type.

    They convert an input of one element.
    """
    tensor = launch["self"]
    if tensor.numel() == 1 and tensor.dtype is not launch.outs[0].dtype:
        yield from outs(launch)
        yield temporary("converted", launch.outs[0].dtype.itemsize)
    else:
        yield from outs_and_staging(launch, tensor, dims_of(launch, tensor), 1)


def logsumexp(launch: Launch) -> Iterator[Step]:
    """Plan maxima, the mask of infinite ones, then exponentials and result.

    The exponentials are of the input minus its maxima.
    """
    tensor, rows = launch["self"], launch.outs[0].nbytes
    yield temporary("maxima", rows)
    yield from staging_steps(tensor, dims_of(launch, tensor), tensor.element_size(), launch.card)
    yield temporary("absolute", rows)
    yield temporary("infinite", rows // launch.outs[0].dtype.itemsize)
    yield drop("infinite")
    yield drop("absolute")
    yield temporary("exponentials", tensor.numel() * tensor.element_size())
    yield from outs_and_staging(
        launch, tensor, dims_of(launch, tensor), accumulator_bytes(tensor.dtype)
    )


def aminmax(launch: Launch) -> Iterator[Step]:
    """Plan the smallest and the largest value in one kernel."""
    tensor = launch["self"]
    yield from outs_and_staging(launch, tensor, dims_of(launch, tensor), 2 * tensor.element_size())


def with_index(launch: Launch) -> Iterator[Step]:
    """Plan an extreme and its place: a value and a 64-bit index."""
    tensor = launch["self"]
    yield from outs_and_staging(launch, tensor, dims_of(launch, tensor), 16)


def variance(launch: Launch) -> Iterator[Step]:
    """Plan Welford's mean, sum of squares and two counts (WelfordData)."""
    tensor = launch["self"]
    yield from outs_and_staging(
        launch, tensor, dims_of(launch, tensor), 4 * accumulator_bytes(tensor.dtype)
    )


def count_nonzero(launch: Launch) -> Iterator[Step]:
    """Plan a bool per element, unless it is one, then their sum."""
    tensor = launch["self"]
    if tensor.dtype is not torch.bool:
        yield temporary("is not zero", tensor.numel())
        tensor = torch.empty_like(tensor, dtype=torch.bool, device="meta")
    yield from _in_type_of_result(launch, tensor, torch.int64)


def distance(launch: Launch) -> Iterator[Step]:
    """Plan `dist`: the difference, then its norm."""
    tensor = launch["self"]
    size = torch.broadcast_shapes(tensor.size(), launch["other"].size())
    tensor = torch.empty(size, dtype=tensor.dtype, device="meta")
    yield temporary("difference", tensor.numel() * tensor.element_size())
    yield from outs_and_staging(
        launch, tensor, range(tensor.dim()), accumulator_bytes(tensor.dtype)
    )


def renormed(launch: Launch) -> Iterator[Step]:
    """Plan norms along the dimension, then factors for half types.

    The factors have the half type.
    """
    tensor = launch["self"]
    rows = tensor.size(launch["dim"])
    item = accumulator_bytes(tensor.dtype)
    yield from outs_and_staging(launch, tensor, (), item)
    yield temporary("norms", rows * item)
    if item != tensor.element_size():
        yield temporary("factors", rows * tensor.element_size())


_SOURCE = "aten/src/ATen/native/cuda/Reduce.cuh: setReduceConfig, gpu_reduce_kernel"
_LOGIC = _SOURCE + "; ReduceLogicKernel.cu"
_SUM_SHOWN = "gpt2_b4s512_adamw, backward: gradients of biases"
_LOGIC_SHOWN = "t5_small_b8s256_adafactor, forward"
OPERATORS = (
    Operator(
        ("sum", "sum.dim_IntList"),
        memory=total,
        values=ValueRule(health=counted_up, shared=entries, below=summed),
        source=_SOURCE,
        shown_by=_SUM_SHOWN,
    ),
    Operator(
        ("mean", "mean.dim", "prod", "prod.dim_int", "nansum"),
        memory=total,
        source=_SOURCE,
        shown_by=_SUM_SHOWN,
    ),
    Operator(
        ("linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim"),
        memory=norm,
        source=_SOURCE,
        shown_by="t5_small_b8s256_adafactor, optimizer",
    ),
    Operator(
        ("logsumexp",),
        memory=logsumexp,
        source="aten/src/ATen/native/ReduceOps.cpp: logsumexp_out_impl",
    ),
    Operator(
        ("any", "any.dim"),
        memory=logical,
        values=ValueRule(health=nonzero_health, assumes=assumptions.same),
        source=_LOGIC,
        shown_by=_LOGIC_SHOWN,
    ),
    Operator(
        ("all", "all.dim"),
        memory=logical,
        values=ValueRule(health=same_health, assumes=assumptions.same),
        source=_LOGIC,
        shown_by=_LOGIC_SHOWN,
    ),
    Operator(("any.dims", "all.dims"), memory=logical, source=_LOGIC, shown_by=_LOGIC_SHOWN),
    Operator(
        ("amax", "max"),
        memory=extremes,
        values=ValueRule(health=same_health, largest=as_before),
        source=_SOURCE + "; ReduceMaxValuesKernel.cu",
    ),
    Operator(
        ("amin", "min"),
        memory=extremes,
        values=ValueRule(health=same_health),
        source=_SOURCE + "; ReduceMaxValuesKernel.cu",
    ),
    # torch.distributions checks with these whether parameters and samples are valid.
    Operator(("_is_all_true",), values=ValueRule(health=always(True))),
    Operator(("_is_any_true",), values=ValueRule(health=always(False))),
    Operator(("aminmax",), memory=aminmax, source=_SOURCE + "; ReduceAMinMaxKernel.cu"),
    Operator(
        ("_aminmax",),
        shape=_shape_aminmax,
        memory=aminmax,
        source=_SOURCE + "; ReduceAMinMaxKernel.cu",
    ),
    Operator(("_aminmax.dim",), shape=_shape_aminmax),
    Operator(
        ("max.dim",),
        memory=with_index,
        values=ValueRule(below=place, largest=as_before),
        source=_SOURCE + "; ReduceArgMaxKernel.cu: argmax_kernel_cuda_impl",
    ),
    Operator(
        ("argmax", "argmin", "min.dim"),
        memory=with_index,
        values=ValueRule(below=place),
        source=_SOURCE + "; ReduceArgMaxKernel.cu: argmax_kernel_cuda_impl",
    ),
    Operator(
        ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction"),
        memory=variance,
        source=_SOURCE + "; ReduceMomentKernel.cu: std_var_kernel_impl",
    ),
    Operator(
        ("count_nonzero", "count_nonzero.dim_IntList"),
        memory=count_nonzero,
        values=ValueRule(health=counted_up),
        source="aten/src/ATen/native/TensorAdvancedIndexing.cpp: count_nonzero_cuda",
    ),
    Operator(
        ("renorm",),
        memory=renormed,
        source="aten/src/ATen/native/Normalization.cpp: TORCH_IMPL_FUNC(renorm_out)",
    ),
    Operator(("dist",), memory=distance, source="aten/src/ATen/native/Distance.cpp: dist"),
)
