"""Conversions of the layout COO: other layouts, types and the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operator_model.autograd_differences import SOLE_TENSOR, in_backward
from nbmem.virtual.operators.sparse.parts import empty_coo, with_same_places
from nbmem.virtual.tensors.sparse import COO, Coo, coo, is_sparse, parts_of, set_parts

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall


def to_copy(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `.to()`, `.cuda()`, `.cpu()` and `.half()`: indices, then values."""
    source = call.args[0]
    device, dtype = call.kwargs.get("device"), call.kwargs.get("dtype")
    if is_virtual(source):
        parts: Coo = parts_of(source)
    else:
        parts = Coo(source._indices(), source._values(), source.is_coalesced())
    indices = parts.indices.to(device or parts.indices.device, copy=True)
    values = parts.values.to(device or parts.values.device, dtype or source.dtype, copy=True)
    if not is_virtual(values):
        return torch.sparse_coo_tensor(
            indices, values, source.size(), check_invariants=False, is_coalesced=parts.coalesced
        )
    return with_same_places(source.size(), parts, indices, values)


def clone(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `clone`: values, then indices; or share a sole gradient's parts.

    A gradient that only the engine holds becomes the leaf's gradient without a copy.

    With a mode on the stack the engine takes every gradient for one with other references:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/functions/accumulate_grad.h
    """
    if call.argument("memory_format") not in (None, torch.preserve_format):
        raise RuntimeError("unsupported memory format option Contiguous")
    tensor = call.args[0]
    parts: Coo = parts_of(tensor)
    plain = parts.indices.is_contiguous() and parts.values.is_contiguous()
    if plain and in_backward() and tensor._use_count() <= SOLE_TENSOR:
        return coo(tensor.size(), parts.indices, parts.values, coalesced=False)
    values = parts.values.clone()
    return with_same_places(tensor.size(), parts, parts.indices.clone(), values)


def detach(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Return a tensor of the same parts."""
    parts: Coo = parts_of(call.args[0])
    return with_same_places(call.args[0].size(), parts, parts.indices, parts.values)


def copy_(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `copy_` between sparse tensors; the target gets new buffers.

    Raises:
        RuntimeError: One of them is dense, in torch's words.
    """
    target, source = call.args[:2]
    if not (is_sparse(target) and is_sparse(source)):
        raise RuntimeError(
            "copy_() between dense and sparse Tensors is not implemented! Found self type = "
            f"{target.type()} and src type = {source.type()}"
        )
    source = source if is_virtual(source) else source.to(target.device)
    parts: Coo = parts_of(source)
    values = parts.values.to(target.dtype, copy=True)
    indices = parts.indices.clone()
    return set_parts(target, Coo(indices, values, parts.coalesced, parts.distinct))


def to_dense(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `to_dense`: zeros, and the elements added to them."""
    tensor = call.args[0]
    dtype = call.argument("dtype") or tensor.dtype
    dense = torch.zeros(tensor.size(), dtype=dtype, device=tensor.device)
    return dense.add_(tensor)


def to_sparse(executor: Executor, call: OperatorCall) -> Any:
    """Run `to_sparse()` of a dense tensor; unknown values count as nonzero."""
    dense = call.args[0]
    if is_sparse(dense):
        return NotImplemented
    layout = call.kwargs.get("layout")
    if layout not in (None, COO):
        return NotImplemented
    wanted = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], int) else dense.dim()
    with executor:
        places = dense.nonzero().t()
        if not places.size(1):
            return empty_coo(call, tuple(dense.size()), wanted, dense.dtype)
        if wanted == dense.dim():
            indices = places.clone(memory_format=torch.contiguous_format)
        else:
            indices = places[:wanted].unique(dim=1)
        values = dense[tuple(indices)].clone() if dense.dim() else dense.reshape(1).clone()
        return coo(dense.size(), indices, values, coalesced=True)


def sparse_mask(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `dense.sparse_mask(mask)` as a product with ones at its places."""
    tensor, mask = call.args[:2]
    parts: Coo = parts_of(mask)
    if not parts.nnz:
        return empty_coo(call, tuple(tensor.size()), parts.sparse_dim, tensor.dtype)
    ones = torch.ones((1,), dtype=mask.dtype, device=mask.device)
    values = ones.view((1,) * parts.values.dim()).expand_as(parts.values)
    return tensor.mul(with_same_places(mask.size(), parts, parts.indices, values)).to(tensor.dtype)


def handlers() -> Iterator[tuple[str, Any]]:
    """Yield handlers by the operator's name."""
    yield "_to_copy", to_copy
    yield "clone", clone
    for name in ("detach", "alias"):
        yield name, detach
    for name in ("copy_", "copy_sparse_to_sparse_"):
        yield name, copy_
    yield "_to_dense", to_dense
    yield "sparse_mask", sparse_mask
