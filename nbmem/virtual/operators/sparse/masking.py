"""Masks of compressed matrices, applied to sparse and dense matrices.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/sparse/SparseCsrTensor.cpp
and SparseCsrTensorMath.cpp
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operators.sparse.layout_conversions import CSR, select_by_mask
from nbmem.virtual.tensors.sparse import Compressed, compressed, coo, is_sparse, parts_of

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def fill_like(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `ones_like`, `zeros_like` and `empty_like`.

    Allocations: values, columns, row starts.
    """
    tensor = call.args[0]
    parts: Compressed = parts_of(tensor)
    values = call.func(parts.values, dtype=call.kwargs.get("dtype"))
    inner = parts.plain.clone()
    return compressed(tensor.size(), parts.layout, parts.compressed.clone(), inner, values)


def _as_coo(tensor: torch.Tensor) -> torch.Tensor:
    parts: Compressed = parts_of(tensor)
    indices = torch.empty((2, parts.nnz), dtype=parts.plain.dtype, device=tensor.device)
    return coo(tensor.size(), indices, parts.values, coalesced=parts.rows)


def multiply_compressed(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply two compressed matrices through COO (mul_out_sparse_csr).

    The product goes into a result that had no elements.
    """
    parts: Compressed = parts_of(left)
    begin = torch.empty(1, dtype=parts.compressed.dtype, device=left.device)
    first, second = _as_coo(left), _as_coo(right)
    product = aten.mul.Tensor(first, second)
    turned = product.to_sparse_csr() if parts.layout is CSR else product.to_sparse_csc()
    found: Compressed = parts_of(turned)
    outer = found.compressed.clone()
    del begin
    inner = found.plain.clone()
    values = found.values.clone()
    del found, turned, product, second, first
    return compressed(left.size(), parts.layout, outer, inner, values)


def sparse_mask(executor: Executor, call: OperatorCall) -> Any:
    """Run `sparse_mask`: a product with ones, or a selection of a dense one.

    A sparse matrix is multiplied by ones at the mask's indices. For a dense matrix a dense mask
    selects.
    """
    tensor, mask = call.args[:2]
    parts: Compressed = parts_of(mask)
    if parts.values.dim() > 1:
        return NotImplemented
    if not parts.nnz:
        return aten.clone.default(mask)
    if is_sparse(tensor):
        ones = aten.ones_like.default(mask)
        return aten.mul.Tensor(tensor, ones)
    one = torch.ones((1,), dtype=torch.bool, device=mask.device)
    lines = (parts.layout, parts.compressed, parts.plain, one.expand_as(parts.values))
    dense = aten._to_dense.default(compressed(tensor.size(), *lines))
    del one, lines
    block = executor.storages.of(dense)
    if block is not None:
        block.most = parts.nnz
    return select_by_mask(tensor, dense if parts.layout is CSR else dense.t(), parts.layout)


def for_gradient(executor: Executor, call: OperatorCall) -> Any:
    """Allocate the copy of a dense gradient of a sparse leaf.

    AccumulateGrad copies it as it is, though the leaf is compressed.

    C++ reads the leaf's strides, since it treats the leaf as a dense tensor.
    """
    tensor = call.args[0]
    return NotImplemented if is_sparse(tensor) else torch.empty_like(tensor)


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    for name in ("ones_like", "zeros_like", "empty_like"):
        yield name, fill_like
    yield "sparse_mask", sparse_mask
    yield "new_empty_strided", for_gradient
