"""Shape changes and concatenation of COO tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.tensors.sparse import Coo, coo, is_sparse, parts_of

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall


def transpose(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Copy a tensor and swap two rows of its indices.

    Dense dimensions are swapped in a view of the values.
    """
    tensor = call.args[0]
    first, second = call.args[1:3] if len(call.args) > 1 else (0, 1)
    first, second = first % tensor.dim(), second % tensor.dim()
    parts: Coo = parts_of(tensor)
    if max(first, second) >= parts.sparse_dim:
        values = parts.values.transpose(first - parts.sparse_dim + 1, second - parts.sparse_dim + 1)
        return coo(_swapped(tensor, first, second), parts.indices, values, coalesced=False)
    values = parts.values.clone()
    indices = parts.indices.clone()
    row = torch.zeros_like(indices[first])
    row.copy_(indices[first])
    indices[first].copy_(indices[second])
    indices[second].copy_(row)
    del row
    size = _swapped(tensor, first, second)
    return coo(size, indices, values, coalesced=False, distinct=parts.distinct)


def _swapped(tensor: torch.Tensor, first: int, second: int) -> list[int]:
    size = list(tensor.size())
    size[first], size[second] = size[second], size[first]
    return size


def permute(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Reorder the rows of the indices; the values are shared."""
    tensor, dims = call.args[0], [dim % call.args[0].dim() for dim in call.args[1]]
    parts: Coo = parts_of(tensor)
    size = [tensor.size(dim) for dim in dims]
    if dims == sorted(dims):
        return coo(size, parts.indices, parts.values, coalesced=parts.coalesced)
    rows = torch.tensor(dims[: parts.sparse_dim]).to(tensor.device)
    indices = parts.indices.index_select(0, rows)
    del rows
    return coo(size, indices, parts.values, coalesced=False, distinct=parts.distinct)


def cat(executor: Executor, call: OperatorCall) -> Any:
    """Concatenate the indices, shifted, then the values."""
    tensors = call.args[0]
    dim = call.argument("dim", 0) % tensors[0].dim()
    if not all(is_sparse(tensor) for tensor in tensors):
        raise RuntimeError("Concatenating sparse tensors, but a dense tensor was found")
    every: list[Coo] = [parts_of(tensor) for tensor in tensors]
    size = list(tensors[0].size())
    size[dim] = sum(tensor.size(dim) for tensor in tensors)
    indices = torch.cat([parts.indices for parts in every], 1)
    values = torch.cat([parts.values for parts in every])
    start = at = 0
    for tensor, parts in zip(tensors, every, strict=True):
        indices[dim, at : at + parts.nnz].add_(start)
        start += tensor.size(dim)
        at += parts.nnz
    return coo(size, indices, values, coalesced=False)


def unsqueeze(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Insert a row of zeros into the indices."""
    tensor = call.args[0]
    dim = call.args[1] % (tensor.dim() + 1)
    parts: Coo = parts_of(tensor)
    size = list(tensor.size())
    size.insert(dim, 1)
    if dim > parts.sparse_dim:
        values = parts.values.unsqueeze(dim - parts.sparse_dim + 1)
        return coo(size, parts.indices, values, coalesced=parts.coalesced)
    row = torch.zeros((1, parts.nnz), dtype=torch.int64, device=tensor.device)
    indices = torch.cat([parts.indices[:dim], row, parts.indices[dim:]])
    del row
    return coo(size, indices, parts.values, coalesced=False, distinct=parts.distinct)


def stack(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Unsqueeze each tensor, then concatenate."""
    dim = call.argument("dim", 0)
    return torch.cat([tensor.unsqueeze(dim) for tensor in call.args[0]], dim)


def select(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `tensor[index]` (select_sparse).

    The count of elements is known if the indices are.
    """
    tensor, dim, index = call.args
    dim %= tensor.dim()
    parts: Coo = parts_of(tensor)
    size = [length for at, length in enumerate(tensor.size()) if at != dim]
    if not -tensor.size(dim) <= index < tensor.size(dim):
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(tensor.size())} at "
            f"dimension {dim}"
        )
    if dim >= parts.sparse_dim:
        values = parts.values.select(dim - parts.sparse_dim + 1, index)
        return coo(size, parts.indices, values, coalesced=parts.coalesced)
    found = parts.indices[dim].eq(index % tensor.size(dim)).nonzero().view(-1)
    values = parts.values.index_select(0, found)
    if parts.sparse_dim == 1:
        return values.sum(0)
    others = torch.arange(parts.sparse_dim, device=tensor.device).ne(dim).nonzero().view(-1)
    indices = parts.indices.index_select(1, found).index_select(0, others)
    return coo(size, indices, values, coalesced=parts.coalesced)


def narrow_copy(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Copy the elements within a range of one dimension."""
    tensor, dim, start, length = call.args
    dim %= tensor.dim()
    parts: Coo = parts_of(tensor)
    size = list(tensor.size())
    size[dim] = length
    if dim >= parts.sparse_dim:
        values = parts.values.narrow_copy(dim - parts.sparse_dim + 1, start, length)
        return coo(size, parts.indices, values, coalesced=parts.coalesced)
    mask = (parts.indices[dim] >= start).__and__(parts.indices[dim] < start + length)
    indices = parts.indices.masked_select(mask).view(parts.sparse_dim, -1)
    indices[dim].sub_(start)
    values = parts.values.index_select(0, mask.nonzero().view(-1))
    return coo(size, indices, values, coalesced=parts.coalesced)


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    for name in ("t", "transpose"):
        yield name, transpose
    yield "permute", permute
    yield "cat", cat
    yield "unsqueeze", unsqueeze
    yield "stack", stack
    yield "select", select
    yield "narrow_copy", narrow_copy
    yield "is_same_size", lambda _, call: call.args[0].size() == call.args[1].size()
