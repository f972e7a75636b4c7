"""Matrix products: workspaces of cuBLAS and cuBLASLt, and type checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import BLAS, BLASLT, Operator, out, outs, temporary
from nbmem.virtual.operator_model.value_checks import aten_type_name, in_cpp
from nbmem.virtual.tensors.shapes import is_dense

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def linear(
    tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Run `linear` as matmul, as addmm, or as matmul and an in-place add.

    With a bias it is one addmm, whose epilogue adds the bias, if the input is a matrix. The
    same holds if the input is contiguous and the bias is a vector. Otherwise the bias is added
    in place.

    https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Linear.cpp
    """
    if bias is None:
        return torch.matmul(tensor, weight.t())
    if tensor.dim() == 2:
        return torch.addmm(bias, tensor, weight.t())
    if tensor.dim() and tensor.is_contiguous() and bias.dim() == 1:
        flat = tensor.reshape(-1, tensor.size(-1))
        return torch.addmm(bias, flat, weight.t()).view(*tensor.size()[:-1], weight.size(0))
    return torch.matmul(tensor, weight.t()).add_(bias)


def _check_numbers(tensor: torch.Tensor) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise NotImplementedError(f"\"addmm_cuda\" not implemented for '{aten_type_name(tensor)}'")


def _check_product(call: OperatorCall) -> None:
    left, right = call.args[:2]
    if left.dtype is not right.dtype:
        raise RuntimeError(
            "expected mat1 and mat2 to have the same dtype, but got: "
            f"{in_cpp(left)} != {in_cpp(right)}"
        )
    _check_numbers(left)


def _check_product_with_bias(call: OperatorCall) -> None:
    bias, left, right = call.args[:3]
    for name, other in (("mat1", left), ("self", bias)):
        if other.dtype is not right.dtype:
            raise RuntimeError(
                f"{name} and mat2 must have the same dtype, but got {aten_type_name(other)} and "
                f"{aten_type_name(right)}"
            )
    _check_numbers(left)


def _check_products(call: OperatorCall) -> None:
    left, right = call.args[:2]
    if left.dtype is not right.dtype:
        raise RuntimeError(
            f"expected scalar type {aten_type_name(left)} but found {aten_type_name(right)}"
        )


def _check_vector(call: OperatorCall) -> None:
    *_, left, right = call.args[:2] if call.func is aten.mv.default else call.args[:3]
    if left.dtype is not right.dtype:
        names = aten_type_name(right), aten_type_name(left), aten_type_name(right)
        raise RuntimeError(
            "addmv input tensors must have the same dtype, but got {}, {}, and {}".format(*names)
        )


def product(launch: Launch) -> Iterator[Step]:
    """Yield the result, the operands' copies and cuBLAS's workspace.

    The handle's workspace is taken when the product is launched.
    """
    if launch.outs:
        yield out()
    operands = [arg for arg in launch.call.args[:3] if isinstance(arg, torch.Tensor)][-2:]
    if _is_computed(launch, operands):
        yield from _operand_copies(operands)
        yield BLAS


def products(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `bmm`, whose outer products are multiplications.

    Since torch 2.13 a product over one number is a multiplication, unless it is complex. A
    multiplication takes operands with any strides, without a copy.

    torch/_native/ops/bmm_outer_product/triton_impl.py: _is_outer_product
    """
    left, right = launch.call.args[:2]
    is_outer = left.size(-1) == 1 and left.numel() and right.numel() and not left.is_complex()
    if is_outer and launch.rules.outer_products_multiply:
        yield from outs(launch)
    else:
        yield from product(launch)


def product_with_bias(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `addmm`, by cuBLASLt if its epilogue adds the bias.

    The bias must be a contiguous vector of the result's width, and beta 1. Neither dimension of
    mat2 may be 1.

    aten/src/ATen/native/cuda/Blas.cpp: isInputCompliesAddmmCudaLt
    """
    if launch.outs:
        yield out()
    if _is_computed(launch, launch.call.args[1:3]):
        yield from _operand_copies(launch.call.args[1:3])
        bias, right = launch["self"], launch["mat2"].size()
        added = bias.size() == right[1:] and bias.is_contiguous() and min(right) > 1
        yield BLASLT if added and launch["beta"] == 1 else BLAS


def run_foreach_mm(executor: Executor, call: OperatorCall) -> Any:
    """Run `_foreach_mm` by torch's own Python, as one grouped product.

    Returns NotImplemented before torch 2.13, and where torch's condition does not hold: cards
    without a grouped product, for example.
    """
    packing = _packing()
    if packing is None:
        return NotImplemented
    with executor:
        if not packing._foreach_mm_cond(*call.args):
            return NotImplemented
        return packing._foreach_mm_impl(*call.args)


@cache
def _packing() -> Any:
    """Return torch's module that packs products (2.13), or None before."""
    try:
        module = import_module("torch._native.ops.foreach_mm.impl")
    except ImportError:
        return None
    parts = ("_foreach_mm_cond", "_foreach_mm_impl")
    return module if all(hasattr(module, part) for part in parts) else None


def _is_computed(launch: Launch, operands: Sequence[torch.Tensor]) -> bool:
    """Return whether cuBLAS runs: the result and operands have elements.

    A product without elements, or over none, is filled in without cuBLAS.
    """
    full = not launch.outs or launch.outs[0].nbytes
    return bool(full) and all(operand.numel() for operand in operands)


def _operand_copies(operands: Sequence[torch.Tensor]) -> Iterator[Step]:
    """Yield contiguous copies of operands that cuBLAS cannot step through.

    These are expanded operands, mostly. The result is stored by rows and cuBLAS counts by columns,
    so the second operand is its first. aten/src/ATen/native/cuda/Blas.cpp:
    prepare_matrix_for_cublas, prepare_batch_matrix_for_cublas, addmv_out_cuda
    """
    for number, operand in reversed(tuple(enumerate(operands))):
        if not (_has_step(operand) if operand.dim() == 1 else _has_leading_dimension(operand)):
            yield temporary(f"operand {number}", operand.numel() * operand.element_size())


def _has_step(vector: torch.Tensor) -> bool:
    return vector.stride(0) != 0


def _has_leading_dimension(matrix: torch.Tensor) -> bool:
    (rows, columns), (down, right) = matrix.size()[-2:], matrix.stride()[-2:]
    return (
        (right == 1 and down >= max(1, columns))
        or (down == 1 and right >= max(1, rows))
        or (matrix.dim() == 2 and is_dense(matrix))
        or (matrix.is_contiguous() and bool(down and right))
    )


_HANDLE = "aten/src/ATen/cuda/CublasHandlePool.cpp: getCurrentCUDABlasHandle"
_SHOWN = "gpt2_b4s512_adamw"
OPERATORS = (
    Operator(("linear",), composite=linear),
    Operator(("_foreach_mm",), run=run_foreach_mm, source="torch/_native/ops/foreach_mm/impl.py"),
    Operator(("mm",), refuse=_check_product, memory=product, source=_HANDLE, shown_by=_SHOWN),
    Operator(("bmm",), refuse=_check_products, memory=products, source=_HANDLE, shown_by=_SHOWN),
    Operator(
        ("mv", "addmv"), refuse=_check_vector, memory=product, source=_HANDLE, shown_by=_SHOWN
    ),
    Operator(
        ("baddbmm", "addbmm", "dot", "mm.out", "bmm.out"),
        memory=product,
        source=_HANDLE,
        shown_by=_SHOWN,
    ),
    Operator(
        (
            *("addmm_", "baddbmm_", "addbmm_", "addmv_"),
            *("baddbmm.out", "addbmm.out", "addmv.out", "mv.out"),
        ),
        memory=product,
        source=_HANDLE,
    ),
    Operator(
        ("addmm", "_addmm_activation"),
        refuse=_check_product_with_bias,
        memory=product_with_bias,
        source="aten/src/ATen/native/cuda/Blas.cpp: addmm_out_cuda_impl; CUDABlas.cpp: CUBLASLT",
        shown_by=_SHOWN,
    ),
    Operator(
        ("addmm.out",),
        memory=product_with_bias,
        source="aten/src/ATen/native/cuda/Blas.cpp: addmm_out_cuda_impl; CUDABlas.cpp: CUBLASLT",
        shown_by="resnet101_b32_sgdm_compile",
    ),
)
