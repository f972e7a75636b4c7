"""The table of kernel models: operator, what it takes, and where that is known from."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operators import (
    blas,
    counting,
    distance,
    embedding,
    index,
    loss,
    norm,
    pointwise,
    random,
    reduce,
    reduce_compound,
    scan,
    sort,
)
from nbmem.virtual.operators.attention import kernels as attention
from nbmem.virtual.operators.convolution import kernels as convolution
from nbmem.virtual.operators.operator import Kernel, Launch, Plan
from nbmem.virtual.tensors.calls import Call
from nbmem.virtual.tensors.shapes import as_meta

if TYPE_CHECKING:
    from nbmem.virtual.tensors.shapes import Results

KERNELS: tuple[Kernel, ...] = (
    *blas.KERNELS,
    *attention.KERNELS,
    *reduce.KERNELS,
    *reduce_compound.KERNELS,
    *embedding.KERNELS,
    *index.KERNELS,
    *sort.KERNELS,
    *random.KERNELS,
    *scan.KERNELS,
    *counting.KERNELS,
    *distance.KERNELS,
    *convolution.KERNELS,
    *norm.KERNELS,
    *pointwise.KERNELS,
    *loss.KERNELS,
)


@lru_cache(maxsize=1)
def _by_operator() -> dict[Any, Kernel]:
    found: dict[Any, Kernel] = {}
    for kernel in KERNELS:
        for name in kernel.ops:
            packet, _, overload = name.partition(".")
            if hasattr(torch.ops.aten, packet):
                operator = getattr(torch.ops.aten, packet)
                if hasattr(operator, overload or "default"):
                    found[getattr(operator, overload or "default")] = kernel
    return found


def plan_of(call: Call, results: Results) -> Plan | None:
    """The steps of a call; None where it takes its results in order and nothing else."""
    kernel = _by_operator().get(call.func)
    if kernel is None:
        return None
    # Rules look at geometry only, so they get tensors that they can do anything with.
    args, kwargs = call.map(as_meta)
    launch = Launch(Call(call.func, args, kwargs), results.fresh, call.gpu.card, call.gpu.dnn)
    return Plan(tuple(kernel.rule(launch)))
