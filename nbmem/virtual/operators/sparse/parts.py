"""Creation of COO tensors, and access to their indices and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import CUDA, is_virtual
from nbmem.virtual.operator_model.operator import LONG, Executor
from nbmem.virtual.operators.sorting import cub
from nbmem.virtual.tensors.sparse import Coo, alias, coo, parts_of, set_parts
from nbmem.virtual.warnings import COALESCE

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def scratch(like: torch.Tensor, nbytes: int) -> torch.Tensor:
    """Allocate memory that a kernel uses until the tensor is deleted."""
    return torch.empty(nbytes, dtype=torch.uint8, device=like.device)


def with_same_places(
    size: torch.Size, parts: Coo, indices: torch.Tensor, values: torch.Tensor
) -> Any:
    """Return a tensor with elements at the same places, in new buffers."""
    return coo(size, indices, values, coalesced=parts.coalesced, distinct=parts.distinct)


def empty_coo(
    call: OperatorCall, size: tuple[int, ...], sparse_dim: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return a sparse tensor without elements."""
    device = CUDA[call.gpu.index]
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=device)
    values = torch.empty((0, *size[sparse_dim:]), dtype=dtype, device=device)
    return coo(size, indices, values, coalesced=True)


def with_dims(executor: Executor, call: OperatorCall) -> Any:
    """Run `sparse_coo_tensor(size)`, which has no elements."""
    with executor:
        size = tuple(call.argument("size"))
        sparse_dim = call.argument("sparse_dim", len(size))
        return empty_coo(call, size, sparse_dim, call.kwargs.get("dtype"))


def empty(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `torch.empty(layout=torch.sparse_coo)`, `empty_like` and the like."""
    first = call.args[0]
    if not isinstance(first, torch.Tensor):
        return empty_coo(call, tuple(first), len(first), call.kwargs.get("dtype"))
    dtype = call.kwargs.get("dtype") or first.dtype
    return empty_coo(call, tuple(first.size()), parts_of(first).sparse_dim, dtype)


def zero_(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `zero_()`, which removes all elements."""
    tensor = call.args[0]
    parts: Coo = parts_of(tensor)
    gone = empty_coo(call, tuple(tensor.size()), parts.sparse_dim, tensor.dtype)
    return set_parts(tensor, parts_of(gone))


def with_tensors(executor: Executor, call: OperatorCall) -> Any:
    """Run `sparse_coo_tensor(indices, values, size)` after its checks.

    The result shares their memory.
    """
    if not is_virtual(call.argument("values")):
        return NotImplemented
    coalesced = bool(call.argument("is_coalesced"))
    size, indices, values = (call.argument(name) for name in ("size", "indices", "values"))
    return coo(size, indices, values, coalesced=coalesced)


def indices_of(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `_indices()`, or `indices()` of a coalesced tensor."""
    return alias(_checked(executor, call, "indices").indices)


def values_of(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `_values()`, or `values()` of a coalesced tensor."""
    return alias(_checked(executor, call, "values").values)


def _checked(executor: Executor, call: OperatorCall, which: str) -> Any:
    parts = parts_of(call.args[0])
    free = call.func._schema.name.startswith("aten::_")
    if isinstance(parts, Coo) and not (free or parts.coalesced):
        raise RuntimeError(
            f"Cannot get {which} on an uncoalesced tensor, please call .coalesce() first"
        )
    return parts


def set_coalesced(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `_coalesced_(bool)`."""
    tensor, wanted = call.args
    parts = parts_of(tensor)
    known = parts.nnz if parts.coalesced else parts.distinct
    return set_parts(tensor, Coo(parts.indices, parts.values, wanted, known))


def coalesced(tensor: torch.Tensor, executor: Executor, call: OperatorCall) -> Coo:
    """Return a tensor's parts, merged if it is not coalesced.

    It is called inside of the mode.
    """
    parts: Coo = parts_of(tensor)
    return parts if parts.coalesced else _merged(tensor, executor, call)


def coalesce(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `coalesce()`: a sort by place, and sums of equal places.

    https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu
    _coalesce_sparse_cuda
    """
    tensor = call.args[0]
    parts = coalesced(tensor, executor, call)
    return coo(tensor.size(), parts.indices, parts.values, coalesced=True)


def _merged(tensor: torch.Tensor, executor: Executor, call: OperatorCall) -> Coo:
    """Merge equal places: place buffers, sort, comparison, then the result.

    There are three buffers of indices, and scratch memory of the sort and of the comparison.
    """
    parts: Coo = parts_of(tensor)
    indices, values, count = parts.indices, parts.values, parts.nnz
    card = call.gpu.card
    flat = torch.empty((1, count), dtype=torch.int64, device=values.device)
    order, offsets = scratch(values, count * LONG), scratch(values, count * LONG)
    sort = scratch(values, cub.merge_sort(count, LONG, LONG))
    del sort
    unique = scratch(values, cub.thrust_unique_by_key(card, count, LONG))
    del unique
    places = _places(tensor, executor, call)
    known = isinstance(places, torch.Tensor)
    found = places.size(1) if isinstance(places, torch.Tensor) else places
    merged = torch.empty((found, *values.shape[1:]), dtype=values.dtype, device=values.device)
    made = flat[:, :found]  # of one dimension, they stay where they are
    if len(indices) > 1:
        made = torch.empty((len(indices), found), dtype=torch.int64, device=values.device)
    del offsets, order, flat
    if known:
        executor.values.teach(made, places)
    return Coo(made, merged, coalesced=True)


def _places(tensor: torch.Tensor, executor: Executor, call: OperatorCall) -> torch.Tensor | int:
    """Return the distinct places in order.

    If they are unknown, the largest possible count is returned.
    """
    parts: Coo = parts_of(tensor)
    cpu_values = executor.values.cpu_values(parts.indices)
    if cpu_values is not None:
        with _C._DisableTorchDispatch():
            return cpu_values.unique(dim=1)
    if parts.distinct is not None:
        return parts.distinct
    call.gpu.note(COALESCE)
    return min(parts.nnz, tensor.size()[: parts.sparse_dim].numel())


def facts(name: str) -> Any:
    """Return a handler that reads one property of a tensor's parts."""

    def read(executor: Executor, call: OperatorCall) -> Any:
        parts = parts_of(call.args[0])
        return {
            "_nnz": lambda: parts.nnz,
            "is_coalesced": lambda: parts.coalesced,
            "sparse_dim": lambda: parts.sparse_dim if isinstance(parts, Coo) else 2,
            "dense_dim": lambda: parts.dense_dim if isinstance(parts, Coo) else 0,
        }[name]()

    return read


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    for name in ("_nnz", "is_coalesced", "sparse_dim", "dense_dim"):
        yield name, facts(name)
    yield "_dimI", facts("sparse_dim")
    yield "_dimV", facts("dense_dim")
    for name in ("indices", "_indices"):
        yield name, indices_of
    for name in ("values", "_values"):
        yield name, values_of
    yield "_coalesced_", set_coalesced
    yield "_coalesce", coalesce
    for name in ("empty", "empty_like", "zeros", "zeros_like", "new_zeros", "new_empty"):
        yield name, empty
    yield "zero_", zero_
