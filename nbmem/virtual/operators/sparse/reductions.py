"""Sums, norms and softmaxes of the layout COO.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/sparse/SparseTensorMath.cpp
and cuda/SoftMax.cu
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import LONG, Executor
from nbmem.virtual.operators.sorting import cub
from nbmem.virtual.operators.sparse.parts import coalesced, scratch, with_same_places
from nbmem.virtual.tensors.sparse import Coo, coo, parts_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


def total(executor: Executor, call: OperatorCall) -> Any:
    """Run `sum()` of all values, or sum_dims over some dimensions."""
    dims = call.argument("dim")
    if dims is not None:
        return sum_dims(executor, call)
    return parts_of(call.args[0]).values.sum(dtype=call.argument("dtype"))


def sum_dims(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Sum over some dimensions.

    Their rows of indices are removed, and elements that then have equal indices are added up.
    """
    tensor = call.args[0]
    dims = call.argument("dim")
    dims = sorted(dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims))
    parts: Coo = parts_of(tensor)
    within = [dim - parts.sparse_dim + 1 for dim in dims if dim >= parts.sparse_dim]
    gone = [dim for dim in dims if dim < parts.sparse_dim]
    if len(gone) == parts.sparse_dim:
        return parts.values.sum([0, *within])
    values = parts.values.sum(within) if within else parts.values.clone()
    size = [length for dim, length in enumerate(tensor.size()) if dim not in dims]
    if not gone:
        return coo(size, parts.indices.clone(), values, coalesced=parts.coalesced)
    kept = [dim for dim in range(parts.sparse_dim) if dim not in gone]
    indices = torch.empty((len(kept), parts.nnz), dtype=torch.int64, device=tensor.device)
    for row, dim in enumerate(kept):
        indices[row].copy_(parts.indices[dim])
    made = coo(size, indices, values, coalesced=False).coalesce()
    del indices, values
    return made


def norm(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Return the norm of all values."""
    order = call.argument("p", 2)
    values = coalesced(call.args[0], executor, call).values
    return values.norm(2 if order is None else order)


def softmax(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run sparse softmax: values, indices, offsets and pools.

    Elements are sorted by the other dimensions, and the start of each pool is found.
    """
    tensor = call.args[0]
    parts = coalesced(tensor, executor, call)
    values = torch.empty_like(parts.values)
    indices = parts.indices.clone()
    if call.argument("dim") % tensor.dim() >= parts.sparse_dim:
        return with_same_places(tensor.size(), parts, indices, values)
    offsets = _offsets(values, parts)
    _pools(values, parts)
    del offsets
    return with_same_places(tensor.size(), parts, indices, values)


def softmax_backward(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run the backward of sparse softmax.

    There are offsets of the output, the input and the gradient, and the pools again.
    """
    gradient, output = call.args[0], call.args[1]
    parts = coalesced(output, executor, call)
    values = torch.empty_like(parts.values)
    indices = parts.indices.clone()
    if call.argument("dim") % output.dim() >= parts.sparse_dim:
        return with_same_places(gradient.size(), parts, indices, values)
    offsets = [_offsets(values, parts) for _ in range(3)]
    _pools(values, parts)
    while offsets:
        offsets.pop()
    return with_same_places(gradient.size(), parts, indices, values)


def _offsets(values: torch.Tensor, parts: Coo) -> torch.Tensor:
    """Allocate one offset per place; the strides are freed afterwards."""
    strides = scratch(values, parts.sparse_dim * LONG)
    offsets = scratch(values, parts.nnz * LONG)
    del strides
    return offsets


def _pools(values: torch.Tensor, parts: Coo) -> None:
    """Allocate and free the scratch memory of pools.

    A pool has the elements that one softmax is over. They are sorted and counted, and each
    pool's start is found.
    """
    order = scratch(values, parts.nnz * LONG)
    sort = scratch(values, cub.merge_sort(parts.nnz, LONG))
    del sort
    pools = scratch(values, parts.nnz * LONG)
    for nbytes in (cub.thrust_reduce_by_key(parts.nnz), cub.tile_states(1, 8)):
        held = scratch(values, nbytes)
        del held
    del order, pools


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    yield "sum", total
    yield "_sparse_sum", total
    for name in ("norm", "native_norm"):
        yield name, norm
    for name in ("_sparse_softmax", "_sparse_log_softmax"):
        yield name, softmax
        yield f"{name}_backward_data", softmax_backward
