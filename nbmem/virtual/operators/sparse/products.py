"""Matrix products with a COO matrix, which cuSPARSE takes as CSR.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu
and SparseMatMul.cu. Memory that cuSPARSE itself allocates is unknown and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.operators.sparse.parts import coalesced, scratch
from nbmem.virtual.tensors.sparse import Coo, coo, is_sparse
from nbmem.virtual.warnings import SPARSE_PRODUCT

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall

INT = 4
"""Bytes of an index of cuSPARSE's here."""


def addmm(executor: Executor, call: OperatorCall) -> Any:
    """Run `sparse @ dense + t`."""
    t, sparse, dense = call.args[:3]
    if is_sparse(dense) or not is_sparse(sparse):
        return NotImplemented
    rows, columns = sparse.size(0), dense.size(1)
    _check(sparse, dense)
    made = torch.empty((rows, columns), dtype=t.dtype, device=t.device)
    parts = coalesced(sparse, executor, call)
    if not parts.nnz:
        return _without_elements(made)
    _check_type(parts.values.dtype)
    crow = scratch(made, (rows + 1) * INT)
    row = scratch(made, parts.nnz * INT)
    del row
    column = scratch(made, parts.nnz * INT)
    by_column = scratch(made, made.numel() * made.element_size())
    wide = None
    if not _is_plain(dense):
        wide = dense.contiguous()
    del wide, by_column, column, crow
    return made


def _without_elements(made: torch.Tensor) -> torch.Tensor:
    factor = torch.zeros((), dtype=made.dtype, device=made.device)
    del factor
    return made


def _check(sparse: torch.Tensor, dense: torch.Tensor) -> None:
    if dense.dim() != 2:
        raise RuntimeError(f"addmm: 2D tensor expected, got {dense.dim()}D tensor")
    if dense.size(0) != sparse.size(1):
        raise RuntimeError(
            f"addmm: Argument #3 (dense): Expected dim 0 size {sparse.size(1)}, got {dense.size(0)}"
        )


def _check_type(dtype: torch.dtype) -> None:
    names = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.int64: "Long"}
    if dtype in names:
        raise NotImplementedError(f"\"addmm_sparse_cuda\" not implemented for '{names[dtype]}'")


def _is_plain(dense: torch.Tensor) -> bool:
    """Return True if cuSPARSE takes a matrix uncopied, by rows or columns."""
    down, along = dense.stride()
    return (down == 1 and along == dense.size(0)) or (along == 1)


def mm(executor: Executor, call: OperatorCall) -> Any:
    """Run `sparse @ dense` as addmm with zeros."""
    left, right = call.args[:2]
    if not is_sparse(left):
        return NotImplemented
    if is_sparse(right):
        return _sparse_product(executor, call)
    t = torch.zeros((left.size(0), right.size(1)), dtype=right.dtype, device=right.device)
    return torch.ops.aten._sparse_addmm(t, left, right, beta=0, alpha=1)


def sparse_addmm(executor: Executor, call: OperatorCall) -> Any:
    """Run `torch.sparse.addmm`, which equals `addmm` on a card."""
    return torch.addmm(*call.args[:3], **call.kwargs)


def _sparse_product(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Multiply two sparse matrices as CSR with 32-bit indices.

    The product's elements are counted first.
    """
    left, right = call.args[:2]
    first = coalesced(left, executor, call)
    second = coalesced(right, executor, call)
    held = []
    for parts, matrix in ((first, left), (second, right)):
        held.append(scratch(parts.values, (matrix.size(0) + 1) * INT))
        row = scratch(parts.values, parts.nnz * INT)
        del row
        held.append(scratch(parts.values, parts.nnz * INT))
    size = (left.size(0), right.size(1))
    found = _count_of_product(executor, call, first, second, size)
    crow = scratch(first.values, (size[0] + 1) * INT)
    column = scratch(first.values, found * INT)
    values = torch.empty(found, dtype=left.dtype, device=left.device)
    indices = torch.empty((2, found), dtype=torch.int64, device=left.device)
    del crow, column, held
    return coo(size, indices, values, coalesced=True)


def _count_of_product(
    executor: Executor, call: OperatorCall, first: Coo, second: Coo, size: tuple[int, int]
) -> int:
    """Count the product's elements, or estimate their number.

    The estimate is for indices that are drawn at random. It is used where a factor's indices are
    unknown.
    """
    inner = call.args[1].size(0)
    on_cpu = [executor.values.cpu_values(parts.indices) for parts in (first, second)]
    if on_cpu[0] is not None and on_cpu[1] is not None:
        with _C._DisableTorchDispatch():
            shapes = ((size[0], inner), (inner, size[1]))
            both = [
                torch.sparse_coo_tensor(cpu_values, torch.ones(parts.nnz), shape)
                for cpu_values, parts, shape in zip(on_cpu, (first, second), shapes, strict=True)
            ]
            return int(torch.sparse.mm(*both)._nnz())
    return likely_count(call, size, first.nnz, second.nnz)


def likely_count(call: OperatorCall, size: tuple[int, int], first: int, second: int) -> int:
    """Estimate a product's elements for random places, and leave a note."""
    call.gpu.note(SPARSE_PRODUCT)
    return min(size[0] * size[1], first * second // max(1, call.args[1].size(0)))


def bmm(executor: Executor, call: OperatorCall) -> Any:
    """Run `bmm` matrix by matrix, into one result."""
    sparse, dense = call.args[:2]
    if not is_sparse(sparse) or is_sparse(dense):
        return NotImplemented
    coalesced(sparse, executor, call)
    size = (sparse.size(0), sparse.size(1), dense.size(2))
    return torch.zeros(size, dtype=dense.dtype, device=dense.device)


def mv(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run the product with a vector as with a matrix of one column."""
    matrix, vector = call.args[:2]
    if matrix.dim() != 2 or vector.dim() != 1 or matrix.size(1) != vector.size(0):
        raise RuntimeError("mv: expected self.size(-1) == vec.size(-1)")
    return matrix.matmul(vector.unsqueeze(-1)).squeeze(-1)


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    yield "mm", mm
    yield "addmm", addmm
    yield "_sparse_addmm", sparse_addmm
    yield "mv", mv
    yield "bmm", bmm
    yield "_sparse_sparse_matmul", _sparse_product
