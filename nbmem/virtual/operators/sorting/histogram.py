"""Histograms: the range of the values is read by the CPU where the program does not give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Operator, drop, out, temporary
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.tensors.shapes import one
from nbmem.virtual.tensors.value_bounds import below_of, share_out
from nbmem.virtual.warnings import BINS, COUNTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall


def _extremes(launch: Launch) -> Iterator[Step]:
    """Smallest and largest, one after the other."""
    tensor = launch["self"]
    item = tensor.element_size()
    for _ in range(2):
        yield temporary("extreme", item)
        yield from staging.shared(tensor, range(tensor.dim()), item, launch.card)
        yield drop("extreme")


def bincount_kernel(launch: Launch) -> Iterator[Step]:
    """The largest value says how many bins there are."""
    if launch["self"].numel():
        yield from _extremes(launch)
    yield out()


def histc_kernel(launch: Launch) -> Iterator[Step]:
    """The bins, then their range."""
    yield out()
    if launch["self"].numel() and launch["min"] == launch["max"]:
        yield from _extremes(launch)


def bincount(executor: Executor, call: OperatorCall) -> Any:
    """One count for each value that occurs."""
    tensor, weights = call.args[0], call.argument("weights")
    bins = int(call.argument("minlength", 0) or 0)
    twin = executor.values.twin(tensor)
    if not tensor.numel():
        pass  # as many as were asked for
    elif twin is not None:
        bins = max(bins, int(twin.max()) + 1)
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
    """The number of bins is known."""
    made = executor.execute(call)
    _spread(executor, call, call.args[0], made)
    return made


def _spread(
    executor: Executor, call: OperatorCall, tensor: torch.Tensor, counts: torch.Tensor
) -> None:
    """Where counts are unknown, the same in each bin: their sum is what programs rely on."""
    if executor.values.twin(counts) is None:
        call.gpu.note(COUNTS)
        share_out(executor.values, tensor.numel(), counts)


OPERATORS = (
    Operator(
        ("bincount",),
        run=bincount,
        memory=bincount_kernel,
        source="aten/src/ATen/native/cuda/SummaryOps.cu: _bincount_cuda_template",
        shown_by="none of the H100's runs has one",
    ),
    Operator(
        ("histc",),
        run=histc,
        memory=histc_kernel,
        source="aten/src/ATen/native/cuda/SummaryOps.cu: _histc_cuda_template",
        shown_by="none of the H100's runs has one",
    ),
)
