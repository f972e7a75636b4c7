"""Operators of the layouts CSR and CSC.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/sparse/SparseCsrTensor.cpp,
TensorConversions.cpp and cuda/SparseBlasImpl.cpp. Memory that cuSPARSE itself allocates is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operator_model.operator import LONG, Executor
from nbmem.virtual.operators.sparse import masking
from nbmem.virtual.operators.sparse.layout_conversions import (
    CSC,
    CSR,
    OTHER,
    flip_layout,
    scratch_buffers,
    to_dense,
)
from nbmem.virtual.operators.sparse.parts import facts, scratch
from nbmem.virtual.operators.sparse.products import INT, likely_count, sparse_addmm
from nbmem.virtual.tensors.sparse import (
    COO,
    Compressed,
    alias,
    compressed,
    coo,
    is_sparse,
    parts_of,
)

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


def part(name: str) -> Callable[[Executor, OperatorCall], torch.Tensor]:
    """Return a handler that returns one part."""

    def read(executor: Executor, call: OperatorCall) -> torch.Tensor:
        parts: Compressed = parts_of(call.args[0])
        asked = call.func._schema.name.removeprefix("aten::")
        if asked in (_OF_COLUMNS if parts.rows else _OF_ROWS):
            raise RuntimeError(f"{asked} expected another layout but got {parts.layout}")
        return alias(getattr(parts, name))

    return read


_OF_ROWS = frozenset({"crow_indices", "col_indices"})
_OF_COLUMNS = frozenset({"ccol_indices", "row_indices"})


def _like(tensor: torch.Tensor, parts: Compressed) -> torch.Tensor:
    return compressed(tensor.size(), parts.layout, parts.compressed, parts.plain, parts.values)


def to_copy(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `.to()`, `.cuda()` and `.cpu()`: values, row starts, columns."""
    source = call.args[0]
    device, dtype = call.kwargs.get("device"), call.kwargs.get("dtype")
    if is_virtual(source):
        parts: Compressed = parts_of(source)
    else:
        rows = source.layout in (CSR, torch.sparse_bsr)
        outer = source.crow_indices() if rows else source.ccol_indices()
        inner = source.col_indices() if rows else source.row_indices()
        parts = Compressed(source.layout, outer, inner, source.values())
    to = device or parts.values.device
    values = parts.values.to(to, dtype or source.dtype, copy=True)
    outer = parts.compressed.to(to, copy=True)
    inner = parts.plain.to(to, copy=True)
    if is_virtual(values):
        return compressed(source.size(), parts.layout, outer, inner, values)
    return torch.sparse_compressed_tensor(
        outer, inner, values, source.size(), layout=parts.layout, check_invariants=False
    )


def map_values(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run a function of each value, or a copy.

    Allocations: values, columns, row starts.
    """
    tensor = call.args[0]
    parts: Compressed = parts_of(tensor)
    if call.func is torch.ops.aten.mul.Tensor and len(list(filter(is_sparse, call.tensors))) == 2:
        return masking.multiply_compressed(*call.args)
    if any(isinstance(other, torch.Tensor) and other.dim() for other in call.args[1:]):
        raise NotImplementedError(f"{call.func} of a tensor of the layout {parts.layout}")
    values = call.func(parts.values, *call.args[1:], **call.kwargs)
    inner = parts.plain.clone()
    outer = parts.compressed.clone()
    return _like(tensor, Compressed(parts.layout, outer, inner, values))


def detach(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Return a tensor of the same parts."""
    return _like(call.args[0], parts_of(call.args[0]))


def transpose(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Return a tensor of the same parts in the other layout."""
    tensor = call.args[0]
    parts: Compressed = parts_of(tensor)
    size = list(tensor.size())
    size[-2:] = size[:-3:-1]
    return compressed(size, OTHER[parts.layout], parts.compressed, parts.plain, parts.values)


def to_sparse(executor: Executor, call: OperatorCall) -> Any:
    """Run `to_sparse()`; a COO result shares the values.

    The keyword `layout` names another layout.
    """
    tensor = call.args[0]
    parts: Compressed = parts_of(tensor)
    wanted = call.kwargs.get("layout") or COO
    if wanted is parts.layout:
        return detach(executor, call)
    if wanted is OTHER[parts.layout]:
        return flip_layout(tensor)
    if wanted is not COO or tensor.dim() != parts.values.dim() + 1:
        return NotImplemented
    indices = torch.empty((2, parts.nnz), dtype=parts.plain.dtype, device=tensor.device)
    return coo(tensor.size(), indices, parts.values, coalesced=parts.rows)


def to_compressed(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `to_sparse_csr()` and `to_sparse_csc()`."""
    wanted = CSR if call.func._schema.name.endswith("csr") else CSC
    tensor = call.args[0]
    return detach(executor, call) if parts_of(tensor).layout is wanted else flip_layout(tensor)


def mm(executor: Executor, call: OperatorCall) -> Any:
    """Run `sparse @ dense` and `dense @ sparse` as addmm with zeros."""
    left, right = call.args[:2]
    if is_sparse(left) and is_sparse(right):
        return _sparse_product(executor, call)
    if is_sparse(right):
        size = (left.size(0), right.size(1))
        return torch.addmm(
            torch.zeros(size, dtype=left.dtype, device=left.device), left, right, beta=0
        )
    rows = left if parts_of(left).rows else flip_layout(left)
    t = torch.zeros((left.size(0), right.size(1)), dtype=right.dtype, device=right.device)
    made = torch.addmm(t, rows, right, beta=0, alpha=1)
    del t, rows
    return made


def _sparse_product(executor: Executor, call: OperatorCall) -> Any:
    """Multiply two sparse matrices by rows, with 32-bit indices (spgemm).

    They are added to a result without elements.

    The oracle has this order but for the last two: its cuSPARSE returns products without
    elements.
    """
    layouts = {parts_of(matrix).layout for matrix in call.args[:2]}
    if not layouts <= {CSR, CSC}:
        return NotImplemented
    both = [m if parts_of(m).rows else flip_layout(m) for m in call.args[:2]]
    left, right = parts = [parts_of(matrix) for matrix in both]
    size, values = (both[0].size(0), both[1].size(1)), left.values
    begins = scratch(values, left.compressed.numel() * LONG)
    empty = scratch(values, LONG)
    wide = scratch(values, left.compressed.numel() * LONG)
    del empty
    held = [
        scratch(values, index.numel() * INT)
        for one in parts
        for index in (one.plain, one.compressed)
        if index.dtype == torch.int64
    ]
    held.reverse()  # the first that was made is the first to go
    outer = torch.empty(size[0] + 1, dtype=torch.int32, device=values.device)
    del wide
    places = _places_of_product(executor, left, right, (*both[0].size(), size[1]))
    count = likely_count(call, size, left.nnz, right.nnz) if places is None else len(places[1])
    inner = torch.empty(count, dtype=torch.int32, device=values.device)
    made = torch.empty(count, dtype=values.dtype, device=values.device)
    for index, known in zip((outer, inner), places or (), strict=False):
        executor.values.teach(index, known)
    del held, begins
    return compressed(size, CSR, outer, inner, made)


def _places_of_product(
    executor: Executor, left: Compressed, right: Compressed, sizes: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the product's row starts and columns.

    None is returned if those of a factor are unknown.
    """
    indices = [
        executor.values.cpu_values(i) for one in (left, right) for i in (one.compressed, one.plain)
    ]
    if any(cpu_values is None for cpu_values in indices):
        return None
    with _C._DisableTorchDispatch():
        first, second = (
            torch.sparse_csr_tensor(outer, inner, torch.ones(one.nnz), shape)
            for one, outer, inner, shape in zip(
                (left, right), indices[::2], indices[1::2], (sizes[:2], sizes[1:]), strict=True
            )
        )
        product = first @ second
        return product.crow_indices().int(), product.col_indices().int()


def addmm(executor: Executor, call: OperatorCall) -> Any:
    """Run `sparse @ dense + t`; a CSC matrix is turned into CSR first.

    The dense matrix is made contiguous.
    """
    t, sparse, dense = call.args[:3]
    if is_sparse(dense) or not is_sparse(sparse):
        return _dense_times_sparse(executor, call)
    if sparse.size(1) != dense.size(0):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({sparse.size(0)}x{sparse.size(1)} and "
            f"{dense.size(0)}x{dense.size(1)})"
        )
    if not sparse.size(0) * dense.size(1):
        return torch.empty((sparse.size(0), dense.size(1)), dtype=t.dtype, device=t.device)
    rows = sparse if parts_of(sparse).rows else flip_layout(sparse)
    made = torch.empty((sparse.size(0), dense.size(1)), dtype=t.dtype, device=t.device)
    straight = dense if 1 in dense.stride() else dense.contiguous()
    del straight, rows
    return made


def _dense_times_sparse(executor: Executor, call: OperatorCall) -> Any:
    """Run `dense @ sparse` as the product of both transposed."""
    t, dense, sparse = call.args[:3]
    if is_sparse(dense):
        return NotImplemented
    turned = torch.addmm(t.t(), sparse.t(), dense.t(), **call.kwargs)
    return turned.t().contiguous()


def mv(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run the product with a vector."""
    matrix, vector = call.args[:2]
    return torch.empty(matrix.size(0), dtype=vector.dtype, device=vector.device)


def sampled_addmm(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `torch.sparse.sampled_addmm`.

    It computes the product's elements at the indices of the first matrix.
    """
    matrix = call.args[0]
    parts: Compressed = parts_of(matrix)
    rows = parts.compressed.numel() - 1
    with scratch_buffers(
        parts.values, *[LONG] * bool(rows)
    ):  # of a matrix without rows, which grows
        outer = parts.compressed.clone()
    inner = parts.plain.clone()
    return _like(matrix, Compressed(parts.layout, outer, inner, parts.values.clone()))


def total(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Return the sum of all values."""
    return parts_of(call.args[0]).values.sum(dtype=call.argument("dtype"))


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    for name in ("_nnz", "sparse_dim", "dense_dim"):
        yield name, facts(name)
    for name in ("crow_indices", "ccol_indices"):
        yield name, part("compressed")
    for name in ("col_indices", "row_indices"):
        yield name, part("plain")
    for name in ("values", "_values"):
        yield name, part("values")
    for name in ("clone", "mul", "div", "neg", "relu", "abs", "sqrt", "sin", "tanh", "sgn", "sign"):
        yield name, map_values
    for name in ("detach", "alias"):
        yield name, detach
    for name in ("transpose", "t"):
        yield name, transpose
    for name in ("_to_sparse_csr", "_to_sparse_csc"):
        yield name, to_compressed
    yield from masking.handlers()
    yield "_to_copy", to_copy
    yield "_to_sparse", to_sparse
    yield "_to_dense", to_dense
    yield "_sparse_addmm", sparse_addmm
    yield "mm", mm
    yield "addmm", addmm
    yield "mv", mv
    yield "sum", total
    yield "sparse_sampled_addmm", sampled_addmm
