"""Softmax operators: result types and contiguous copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Operator, contiguous, outs, temporary
from nbmem.virtual.tensors.shapes import like, one

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.shapes import Results

aten = torch.ops.aten


def softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Run softmax to float32 in one kernel for float16 inputs.

    Of bfloat16 a float32 copy is made first.

    aten/src/ATen/native/SoftMax.cpp: softmax (`input_.scalar_type() == ScalarType::Half`)
    """
    return _run_softmax(aten._softmax.default, tensor, dim, dtype)


def log_softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Run log_softmax to float32 in one kernel for float16 inputs."""
    return _run_softmax(aten._log_softmax.default, tensor, dim, dtype)


def _run_softmax(operator: Any, tensor: torch.Tensor, dim: int, dtype: torch.dtype | None) -> Any:
    if dtype is torch.float32 and tensor.dtype is torch.float16:
        return operator(tensor, dim, True)
    return operator(tensor if dtype is None else tensor.to(dtype), dim, False)


def shape(call: OperatorCall) -> Results:
    """Return the result's spec, float32 with `half_to_float`.

    CUDA accepts bfloat16 there, too. The CPU's rule accepts float16 only.
    """
    tensor = call.args[0]
    to_float = bool(call.argument("half_to_float"))
    return one(tensor.size(), torch.float32 if to_float else tensor.dtype)


def shape_backward(call: OperatorCall) -> Results:
    """Return a gradient of the input's type."""
    return one(call.args[0].size(), call.argument("input_dtype"))


def kernel(launch: Launch) -> Iterator[Step]:
    """Plan the result, then a contiguous copy of the input where it is not."""
    yield from outs(launch)
    yield from contiguous(launch.call.args[0])


def kernel_backward(launch: Launch) -> Iterator[Step]:
    """Plan the result, then gradient times output.

    The kernel reads that product instead of the gradient.
    """
    gradient, output = launch.call.args[:2]
    product = gradient * output
    yield from outs(launch)
    yield temporary("gradient * output", product.numel() * product.element_size())
    yield from contiguous(product, output)


def log_kernel_backward(launch: Launch) -> Iterator[Step]:
    """Plan the result, then contiguous copies of gradient and output."""
    yield from outs(launch)
    yield from contiguous(launch.call.args[0], launch.call.args[1])


OPERATORS = (
    Operator(("softmax.int",), composite=softmax),
    Operator(("log_softmax.int",), composite=log_softmax),
    Operator(
        ("_softmax", "_log_softmax"),
        shape=shape,
        memory=kernel,
        source="aten/src/ATen/native/cuda/SoftMax.cu: host_softmax",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Operator(
        ("_softmax_backward_data",),
        shape=shape_backward,
        memory=kernel_backward,
        source="aten/src/ATen/native/cuda/SoftMax.cu: TORCH_IMPL_FUNC(softmax_backward_cuda_out)",
    ),
    Operator(
        ("_log_softmax_backward_data",),
        shape=shape_backward,
        memory=log_kernel_backward,
        source="aten/src/ATen/native/cuda/SoftMax.cu: host_softmax_backward",
        shown_by="vit_b_16_b32_adamw, backward",
    ),
    Operator(("_masked_softmax",), shape=like("self")),
    Operator(("_masked_softmax_backward",), shape=like("grad_output")),
)
