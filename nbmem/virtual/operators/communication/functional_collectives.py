"""Functional collectives, which return a new tensor; DTensor uses them.

Nothing is sent.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d/Functional.cpp
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.virtual.operator_model.communication_log import record_functional
from nbmem.virtual.operator_model.operator import Operator, drop, out, temporary
from nbmem.virtual.tensors.shapes import Results, infer

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall


def counted(executor: Executor, call: OperatorCall) -> Any:
    """Count the communication; the shape rule gives the result.

    Returns NotImplemented.
    """
    call.gpu.workspaces.nccl()
    record_functional(call)
    return NotImplemented


def return_waited(executor: Executor, call: OperatorCall) -> Any:
    """Return the tensor that is waited for.

    The schema declares a new tensor.
    """
    return call.args[0]


def shape_of_exchange(call: OperatorCall) -> Results:
    """Return a result with a storage of its own.

    torch's rule makes it a part of the storage of all ranks' data.
    """
    spec = infer(call).fresh[0]
    spec = replace(spec, offset=0, nbytes=math.prod(spec.size) * spec.dtype.itemsize)
    return Results(spec, (spec,))


def alltoall_memory(launch: Launch) -> Iterator[Step]:
    """Yield the copies of `shard_dim_alltoall` and its result.

    The dimension that is cut, and the one that is gathered, must be the first to be sent. If it
    is another one, there is a copy in which it is the first.
    """
    sent = launch["input"]
    size = sent.numel() * sent.element_size()
    gathers, cuts = launch["gather_dim"] % sent.dim(), launch["shard_dim"] % sent.dim()
    if cuts:
        yield temporary("sent", size)
    if gathers:
        yield temporary("received", size)
    yield out()
    if cuts:
        yield drop("sent")
    if gathers:
        yield drop("received")


_NEW = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
    "broadcast",
)  # fmt: skip

OPERATORS = (
    Operator(
        (
            *(f"_c10d_functional::{name}" for name in _NEW),
            *(f"_c10d_functional::{name}_coalesced" for name in _NEW[:3]),
            *("_c10d_functional::all_reduce_", "_c10d_functional::broadcast_"),
        ),
        run=counted,
    ),
    Operator(
        ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"),
        run=return_waited,
        source="Functional.cpp wait_tensor; _functional_collectives.py AsyncCollectiveTensor",
    ),
    Operator(
        ("_dtensor::shard_dim_alltoall",),
        run=counted,
        shape=shape_of_exchange,
        memory=alltoall_memory,
        source="Functional.cpp shard_dim_alltoall",
    ),
)
