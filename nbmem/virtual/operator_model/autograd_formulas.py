"""Autograd formulas that take another path under a dispatch mode.

With a mode on the stack, C++ treats every tensor as one that might be a subclass. A formula
that would read values, write in place or resize then takes a path that any subclass can
follow. One that reads the device gets another device. The node's calls are replaced by
the calls of the card's own path. Tensors of the other path have a shape and no memory.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/FunctionsManual.cpp;
aten/src/ATen/native/ReduceOps.cpp: cumprod_backward
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model import householder
from nbmem.virtual.operator_model.autograd_differences import in_backward, runs
from nbmem.virtual.operator_model.running_node import register_node_names
from nbmem.virtual.operator_model.shape_only import (
    follow_shape_only,
    is_shape_only,
    shape_only_results,
)
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Handler
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten
UNSIGNED = 1 << 64
"""Nodes show a negative dimension as an unsigned number."""


def run_formula(executor: Executor, call: OperatorCall) -> Any:
    """Run the card's formula for a call of the running autograd node.

    Returns NotImplemented for other nodes, outside of backward, and if a graph of the gradient
    is wanted. In that case the formula's own path is taken.
    """
    executor.nodes.note_call(call.func)
    formula = FORMULAS.get(executor.nodes.name()) if runs.stack else None
    if formula is None or runs.stack[-1] or not in_backward():
        return NotImplemented  # create_graph=True: the formula's own graph is used.
    return formula(executor, call)


def _zero_mask(executor: Executor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a mask of zeros that is known to have no element set.

    In a healthy run nothing is zero.
    """
    mask: torch.Tensor = tensor == 0
    block = executor.storages.of(mask)
    if block is not None:
        block.most = 0
    return mask


def prod_gradient(executor: Executor, call: OperatorCall) -> Any:
    """Run the gradient of `prod` over all elements.

    Without a zero the product is divided by each factor. The indices of zeros are listed first.
    """
    if not _ends_product(executor, call):
        return follow_shape_only(executor, call, _PRODUCTS)
    grad, rest = call.args
    with executor:
        _zero_mask(executor, rest).nonzero()
        return grad * (rest / rest)


def prod_dim_gradient(executor: Executor, call: OperatorCall) -> Any:
    """Run the gradient of `prod` along a dimension.

    Without a zero the product is divided by each factor. Zeros are counted first.
    """
    if not _ends_product(executor, call):
        return follow_shape_only(executor, call, _PRODUCTS)
    grad, rest = call.args
    dims = [n for n in range(rest.dim()) if grad.size(n) != rest.size(n)]
    with executor:
        mask = _zero_mask(executor, rest)
        counts = mask.sum(dims[:1], keepdim=True)
        counts.sum()
        made = grad * (rest / rest)
        del counts, mask
        return made


def _ends_product(executor: Executor, call: OperatorCall) -> bool:
    """Return whether the call is the last step of the other path.

    That step multiplies the path's products with the gradient.
    """
    if call.func is not aten.mul.Tensor:
        return False
    grad, rest = call.args
    return not is_shape_only(executor, grad) and is_shape_only(executor, rest)


def cumprod(executor: Executor, call: OperatorCall) -> Any:
    """Run the gradient of `cumprod`.

    Without a zero these are sums from the end of the remaining products, divided by each
    factor. The other path fills zeros of its own, which stand for the quotient here. Up to
    torch 2.11 it multiplies the remaining factors for each index, and stacks them in the end.
    """
    if call.func is aten.eq.Scalar and not is_shape_only(executor, call.args[0]):
        with executor:
            return _zero_mask_any(executor, call)
    if call.func is aten.where.self and not is_shape_only(executor, call.args[2]):
        with DataKernels():
            return aten.alias.default(call.args[2])  # the quotient, further on
    if call.func not in _QUOTIENTS:
        return follow_shape_only(executor, call, (aten.cumsum.default, *_FACTORS))
    whole = shape_only_results(call)
    dim = int(torch._C._current_autograd_node()._saved_dim)
    dim -= UNSIGNED * (dim > UNSIGNED // 2)
    with executor:
        backwards = whole.flip(dim)
        summed = backwards.cumsum(dim)
        forwards = summed.flip(dim)
        del summed, backwards
        return forwards.div(whole)


def _zero_mask_any(executor: Executor, call: OperatorCall) -> Any:
    """Return the mask of zeros, reduced by `any` for the CPU to read."""
    mask = _zero_mask(executor, call.args[0])
    mask.any()
    return mask


_QUOTIENTS = (aten.zeros.default, aten.new_zeros.default, aten.stack.default)
_FACTORS = (aten.ones.default, aten.cumprod.default, aten.prod.dim_int)
_PRODUCTS = (*_FACTORS, aten.clone.default, aten.cat.default, aten.flip.default)


_PHASE_TOLERANCE = 1e-2


def _is_diagonal(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a diagonal, by its last stride.

    A full matrix is stored by rows or columns. The gradient that has memory in the end is such a
    matrix.
    """
    return tensor.stride(-1) not in (1, tensor.size(-1))


def _check_phase(executor: Executor, call: OperatorCall) -> None:
    with executor:
        imaginary = aten.view_as_real.default(call.args[0]).select(-1, 1)
        zeros = torch.zeros_like(imaginary)
        is_free = torch.allclose(imaginary, zeros, _PHASE_TOLERANCE, _PHASE_TOLERANCE)
    if not is_free:
        kind = "eig" if executor.nodes.name() == "LinalgEigBackward0" else "eigh"
        raise RuntimeError(
            f"linalg_{kind}_backward: The eigenvectors in the complex case are specified up to "
            "multiplication by e^{i phi}. The specified loss function depends on this quantity, so "
            "it is ill-defined."
        )


def eigenvectors(executor: Executor, call: OperatorCall) -> Any:
    """Run the gradient of `eigh` or `eig` with an in-place diagonal.

    The gradient of the values is copied into the diagonal, not scattered into another tensor. A
    check of complex vectors reads first whether the loss depends on their phase.

    Raises:
        RuntimeError: The loss depends on the phase; with torch's message.
    """
    if call.func is aten.view_as_real.default and _is_diagonal(call.args[0]):
        _check_phase(executor, call)
    if call.func is not aten.diagonal_scatter.default:
        return NotImplemented
    held, values, *place = call.args
    with executor:
        held.diagonal(*place).copy_(values)
    with DataKernels():
        return aten.alias.default(held)


def renorm(executor: Executor, call: OperatorCall) -> Any:
    """Run norms of float32 in float32, as CUDA does; others use float64."""
    if call.kwargs.get("dtype") is not torch.float64 or call.args[0].dtype is torch.float64:
        return NotImplemented
    with executor:
        return call.func(*call.args, **{**call.kwargs, "dtype": torch.float32})


def masked_fill(executor: Executor, call: OperatorCall) -> Any:
    """Select what the mask covers, for the gradient of the fill value.

    That gradient is the sum of the selected elements.
    """
    if call.func is aten.scalar_tensor.default:
        return shape_only_results(call)
    if call.func._schema.name != "aten::where":
        return NotImplemented
    mask, grad = call.args[:2]
    with executor:
        return grad.masked_select(mask)


def cross_entropy(executor: Executor, call: OperatorCall) -> Any:
    """Run the target's gradient of binary cross entropy with logits.

    On a card, too, it takes a second tensor: the negated input, times another.
    """
    if call.func is aten.neg.default:
        made = executor.execute(call)
        executor.nodes.negated = weakref.ref(made)
        return made
    if call.func is aten.mul.Tensor and executor.nodes.negated() is call.args[0]:
        return executor.execute(call)
    return NotImplemented


FORMULAS: dict[str, Handler] = {
    "ProdBackward0": prod_gradient,
    "ProdBackward1": prod_dim_gradient,
    "CumprodBackward0": cumprod,
    "LinalgHouseholderProductBackward0": householder.gradient,
    "OrmqrBackward0": householder.gradient,
    "LinalgEighBackward0": eigenvectors,
    "LinalgEigBackward0": eigenvectors,
    "RenormBackward0": renorm,
    "MaskedFillBackward1": masked_fill,
    "BinaryCrossEntropyWithLogitsBackward0": cross_entropy,
}
"""By the name of the node."""
register_node_names(FORMULAS)
