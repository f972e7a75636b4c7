"""Elementwise operators of the layout COO.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/sparse/SparseTensorMath.cpp,
SparseUnaryOps.cpp, SparseBinaryOpIntersectionCommon.h and cuda/SparseCUDATensorMath.cu
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import LONG, Executor
from nbmem.virtual.operators.sparse.parts import coalesced, scratch, with_same_places
from nbmem.virtual.tensors.sparse import Coo, coo, is_sparse, parts_of, set_parts

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten
KEEP_ZEROS = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor",
    "frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "rad2deg", "relu", "round", "sgn",
    "sign", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
"""Functions of which f(0) is 0, so that only stored values change."""


def of_values(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run a function of each value of the coalesced tensor."""
    tensor = call.args[0]
    parts = coalesced(tensor, executor, call)
    values = call.func(parts.values, *call.args[1:], **call.kwargs)
    return with_same_places(tensor.size(), parts, parts.indices.clone(), values)


def of_values_in_place(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run a function of each value in place; requires a coalesced tensor."""
    tensor = call.args[0]
    parts: Coo = parts_of(tensor)
    if not parts.coalesced:
        name = call.func._schema.name.removeprefix("aten::")
        raise RuntimeError(f"{name} requires coalesced input")
    call.func(parts.values, *call.args[1:], **call.kwargs)
    return tensor


def neg(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Copy the tensor and negate the copied values."""
    tensor = call.args[0]
    parts: Coo = parts_of(tensor)
    values = parts.values.clone().neg_()
    return with_same_places(tensor.size(), parts, parts.indices.clone(), values)


def power(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `pow`: indices, then values."""
    tensor, exponent = call.args[:2]
    parts = coalesced(tensor, executor, call)
    indices = parts.indices.clone()
    return with_same_places(tensor.size(), parts, indices, parts.values.pow(exponent))


def _scaled(call: OperatorCall) -> torch.Tensor:
    """Multiply or divide by a number: indices, then values."""
    tensor, number = call.args[:2]
    if not (isinstance(tensor, torch.Tensor) and is_sparse(tensor)):
        tensor, number = number, tensor
    parts: Coo = parts_of(tensor)
    indices = parts.indices.clone()
    values = call.func(parts.values, number, *call.args[2:], **call.kwargs)
    return with_same_places(tensor.size(), parts, indices, values)


def _is_number(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (not value.dim() and not is_sparse(value))


def divide(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Divide by a number; refuse other divisors."""
    if not _is_number(call.args[1]):
        raise RuntimeError(
            "Sparse division requires a scalar or zero-dim dense tensor divisor (got shape "
            f"{list(call.args[1].size())} for divisor)"
        )
    return _scaled(call)


def multiply(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Multiply by a number, a dense tensor or another sparse one."""
    left, right = call.args[:2]
    if _is_number(left) or _is_number(right):
        return _scaled(call)
    if is_sparse(left) and is_sparse(right):
        return _multiply_sparse(left, right)
    sparse, dense = (left, right) if is_sparse(left) else (right, left)
    return _multiply_by_dense(sparse, dense)


def _multiply_by_dense(sparse: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Multiply by the dense tensor's elements at the sparse one's places."""
    parts: Coo = parts_of(sparse)
    size = torch.broadcast_shapes(sparse.size(), dense.size())
    chosen = dense.expand(size)[tuple(parts.indices.unbind(0))]
    indices = parts.indices.clone()
    return with_same_places(size, parts, indices, parts.values.mul(chosen))


def _multiply_sparse(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply two sparse tensors; one is searched for the other's places."""
    first, second = parts_of(left), parts_of(right)
    searched, source = (first, second) if first.coalesced else (second, first)
    if first.coalesced == second.coalesced:
        searched, source = (first, second) if first.nnz >= second.nnz else (second, first)
    most = max(first.nnz, second.nnz)
    held = [scratch(source.values, most * LONG), scratch(source.values, searched.nnz * LONG)]
    if not searched.coalesced:
        held += torch.empty(searched.nnz, dtype=torch.int64, device=left.device).sort()
    held.append(scratch(source.values, 2 * source.nnz * LONG))
    # torch allocates and frees a placeholder of one number here.
    dummy = scratch(source.values, LONG)
    del dummy
    indices = source.indices.clone()
    values = torch.empty(
        (source.nnz, *torch.broadcast_shapes(first.values.shape[1:], second.values.shape[1:])),
        dtype=torch.promote_types(left.dtype, right.dtype),
        device=left.device,
    )
    del held
    return with_same_places(left.size(), source, indices, values)


def add(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Add a sparse tensor to a sparse or a dense one.

    Two sparse tensors give one with the elements of both. Dense plus sparse is dense.
    """
    left, right = call.args[:2]
    alpha = call.argument("alpha", 1)
    if not is_sparse(left):
        dtype = torch.result_type(left, right)
        return left.to(dtype, copy=True).contiguous().add_(right, alpha=alpha)
    _check_sparse(right)
    _check_sizes(left, right)
    return _add_sparse(left, right, alpha)


def _check_sparse(right: Any) -> None:
    if not (isinstance(right, torch.Tensor) and is_sparse(right)):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")


def _check_sizes(left: torch.Tensor, right: torch.Tensor) -> None:
    if left.size() != right.size():
        raise RuntimeError(
            "add: expected 'self' and 'other' to have same size, but "
            f"{list(left.size())} != {list(right.size())}"
        )


def _add_sparse(left: torch.Tensor, right: torch.Tensor, alpha: Any) -> torch.Tensor:
    """Concatenate the indices, then the values, of two sparse tensors."""
    first, second = parts_of(left), parts_of(right)
    if not second.nnz:
        values = first.values.clone()
        return with_same_places(left.size(), first, first.indices.clone(), values)
    if not first.nnz:
        indices = second.indices.clone()
        return with_same_places(left.size(), second, indices, second.values.mul(alpha))
    scaled = second.values if alpha == 1 else second.values.mul(alpha)
    indices = torch.cat([first.indices, second.indices], 1)
    dtype = torch.result_type(left, right)
    values = torch.cat([first.values.to(dtype), scaled.to(dtype)])
    del scaled
    return coo(left.size(), indices, values, coalesced=False)


def add_(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Add into a dense tensor without a copy, or into a sparse one.

    A sparse tensor gets the elements of both.
    """
    left, right = call.args[:2]
    alpha = call.argument("alpha", 1)
    if is_sparse(left):
        _check_sparse(right)
        _check_sizes(left, right)
        return set_parts(left, parts_of(_add_sparse(left, right, alpha)))
    parts: Coo = parts_of(right)
    if left.size() != right.size():
        raise RuntimeError(
            "add: expected 'self' and 'other' to have same size, but self has size "
            f"{list(left.size())} while other has size {list(right.size())} (FYI: dense-sparse "
            "addition does not currently support broadcasting)"
        )
    if not parts.nnz:
        return left
    values = parts.values.to(left.dtype)
    executor.values.forget(left)
    if parts.coalesced:
        return left  # a kernel that takes no memory
    rows = left.size()[: parts.sparse_dim].numel()
    flat_indices = parts.indices[0] if parts.sparse_dim == 1 else parts.indices[0].clone()
    left.view(rows, -1).index_add_(0, flat_indices, values.reshape(parts.nnz, -1), alpha=alpha)
    return left


def subtract(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Subtract by adding the second tensor's values times -1."""
    left, right = call.args[:2]
    return torch.add(left, right, alpha=-call.argument("alpha", 1))


def scale_(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `mul_` and `div_` by a number, into new buffers."""
    tensor = call.args[0]
    if not is_sparse(tensor):
        raise RuntimeError("mul_(dense, sparse) would make the dense tensor sparse")
    function = aten.mul.Tensor if "mul" in call.func._schema.name else aten.div.Tensor
    made: Coo = parts_of(function(tensor, *call.args[1:]))
    return set_parts(tensor, made._replace(coalesced=made.nnz < 2))


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    for name in KEEP_ZEROS:
        yield name, of_values
        yield f"{name}_", of_values_in_place
    yield "neg", neg
    yield "pow", power
    yield "mul", multiply
    yield "div", divide
    for name in ("mul_", "div_"):
        yield name, scale_
    yield "add", add
    yield "add_", add_
    yield "sub", subtract
