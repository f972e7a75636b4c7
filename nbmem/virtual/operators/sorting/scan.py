"""Cumulative sums and products, and repeat_interleave.

CUB scans one row with scratch memory; several rows need none.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/ScanUtils.cuh (scan_dim)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import HALVES, LONG, Operator, drop, out, temporary
from nbmem.virtual.operators.reduce import staging
from nbmem.virtual.operators.sorting import cub
from nbmem.virtual.tensors.shapes import like, one
from nbmem.virtual.warnings import REPEAT

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall


def cumulative(launch: Launch) -> Iterator[Step]:
    """Plan the result, a contiguous input in its type, then the scan."""
    yield out()
    tensor, result = launch["self"], launch.outs[0]
    count, item = tensor.numel(), result.dtype.itemsize
    if tensor.dtype is not result.dtype:
        yield temporary("input", count * item)
        tensor = torch.empty_like(tensor, dtype=result.dtype)
    if not tensor.is_contiguous():
        yield temporary("contiguous", count * item)
    if tensor.dim() and count and count == tensor.size(launch["dim"]):
        torch_type = result.dtype in HALVES or result.dtype.is_complex
        yield temporary("scan", cub.cumulative(count, item, torch_type=torch_type))


def repeated(launch: Launch) -> Iterator[Step]:
    """Plan `repeat_interleave`: the end of each index's repetitions.

    Without a given size, repeats are checked and the CPU reads the last end.
    """
    repeats = launch["repeats"]
    count, item = repeats.numel(), repeats.element_size()
    yield temporary("ends", count * LONG)
    if item < LONG:
        yield temporary("repeats", count * LONG)
    yield temporary("scan", cub.cumulative(count, LONG, torch_type=False))
    yield drop("scan")
    if item < LONG:
        yield drop("repeats")
    if launch["output_size"] is None:
        yield temporary("at least 0", count)
        yield temporary("all", 1)
        yield from staging.staging_steps(torch.empty(count, device="meta"), [0], 1, launch.card)
        yield drop("all")
        yield drop("at least 0")
    yield out()


def repeat_interleave(executor: Executor, call: OperatorCall) -> Any:
    """Run `repeat_interleave` on a tensor of repeats.

    If neither size nor repeats are known, a note is left and each index counts once.
    """
    repeats = call.args[0]
    size = call.argument("output_size")
    if size is None:
        call.gpu.capture.check_wait(call.gpu.stream.handle)
        cpu_values = executor.values.cpu_values(repeats)
        if cpu_values is None:
            call.gpu.note(REPEAT)
        size = int(cpu_values.sum()) if cpu_values is not None else repeats.numel()
    return executor.deliver(call, one((int(size),), repeats.dtype))


OPERATORS = (
    Operator(
        ("cumsum", "cumprod", "logcumsumexp"),
        memory=cumulative,
        source="aten/src/ATen/native/cuda/ScanUtils.cuh: scan_dim",
    ),
    Operator(
        ("repeat_interleave.Tensor",),
        run=repeat_interleave,
        memory=repeated,
        source="aten/src/ATen/native/Repeat.cpp: repeat_interleave_common",
    ),
    Operator(
        ("_logcumsumexp",),
        shape=like("self"),
        memory=cumulative,
        source="aten/src/ATen/native/cuda/ScanUtils.cuh: scan_dim",
    ),
)
