"""Histograms, whose range the CPU reads if the program gives none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Operator, drop, out, temporary
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.tensors.shapes import one
from nbmem.virtual.tensors.value_bounds import below_of, share_out
from nbmem.virtual.warnings import BINS, COUNTS

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall


def _extremes(launch: Launch) -> Iterator[Step]:
    """Yield the reductions that find the smallest and the largest value."""
    tensor = launch["self"]
    item = tensor.element_size()
    for _ in range(2):
        yield temporary("extreme", item)
        yield from staging.staging_steps(tensor, range(tensor.dim()), item, launch.card)
        yield drop("extreme")


def bincount_kernel(launch: Launch) -> Iterator[Step]:
    """Yield the search for the extremes, then the bins.

    The largest value decides how many bins there are.
    """
    if launch["self"].numel():
        yield from _extremes(launch)
    yield out()


def histc_kernel(launch: Launch) -> Iterator[Step]:
    """Yield the bins, then the search for their range if none is given."""
    yield out()
    if launch["self"].numel() and launch["min"] == launch["max"]:
        yield from _extremes(launch)


def bincount(executor: Executor, call: OperatorCall) -> Any:
    """Run `bincount`, with as many bins as the known values need.

    Without values, a bound or `minlength` there is one bin, with a note.
    """
    tensor, weights = call.args[0], call.argument("weights")
    bins = int(call.argument("minlength", 0) or 0)
    cpu_values = executor.values.cpu_values(tensor)
    if not tensor.numel():
        pass  # only `minlength` bins
    elif cpu_values is not None:
        bins = max(bins, int(cpu_values.max()) + 1)
    elif (bound := below_of(executor.values, tensor)) is not None:
        bins = max(bins, bound)
    elif not bins:
        call.gpu.note(BINS)
        bins = 1
    exact = weights is None
    made = executor.deliver(call, one((bins,), torch.int64 if exact else _sum_type(weights)))
    if exact:
        _spread(executor, call, tensor, made)
    return made


def _sum_type(weights: torch.Tensor) -> torch.dtype:
    return torch.float32 if weights.dtype is torch.float32 else torch.float64


def histc(executor: Executor, call: OperatorCall) -> Any:
    """Run `histc`, and spread counts evenly where values are unknown."""
    made = executor.execute(call)
    _spread(executor, call, call.args[0], made)
    return made


def _spread(
    executor: Executor, call: OperatorCall, tensor: torch.Tensor, counts: torch.Tensor
) -> None:
    """Spread unknown counts evenly over the bins.

    Programs rely on the sum of the counts.
    """
    if executor.values.cpu_values(counts) is None:
        call.gpu.note(COUNTS)
        share_out(executor.values, tensor.numel(), counts)


OPERATORS = (
    Operator(
        ("bincount",),
        run=bincount,
        memory=bincount_kernel,
        source="aten/src/ATen/native/cuda/SummaryOps.cu: _bincount_cuda_template",
    ),
    Operator(
        ("histc",),
        run=histc,
        memory=histc_kernel,
        source="aten/src/ATen/native/cuda/SummaryOps.cu: _histc_cuda_template",
    ),
)
