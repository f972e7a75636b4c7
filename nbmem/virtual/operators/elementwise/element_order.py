"""Strides of results where CUDA kernels and torch's shape rules differ.

A kernel of several tensors takes its strides from the first tensor whose strides are not ambiguous.
torch's shape rules for these operators call other operators, with the tensors in another order. The
strides decide whether later operators copy.

aten/src/ATen/native/cuda/Activation*.cu, BinaryOps.cpp, Loss.cpp; aten/src/ATen/TensorIterator.cpp:
reorder_dimensions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import Operator
from nbmem.virtual.tensors.shapes import Results, dense, infer, like, one

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import ShapeRule
    from nbmem.virtual.tensors.operator_call import OperatorCall


def strides_from(*names: str) -> ShapeRule:
    """Return a shape rule whose strides follow arguments in this order."""

    def rule(call: OperatorCall) -> Results:
        spec = infer(call).fresh[0]
        first, second = (_geometry(call.argument(name)) for name in names)
        return one(spec.size, spec.dtype, (first + second).stride())

    return rule


def _geometry(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), device="meta", dtype=torch.float32)


def as_input(call: OperatorCall) -> Results:
    """Return a result of the input's size, type and memory format."""
    tensor = call.argument("self")
    return one(tensor.size(), tensor.dtype, dense(tensor))


OPERATORS = (
    Operator(
        (
            *("softplus_backward", "hardsigmoid_backward", "hardswish_backward"),
            *("hardtanh_backward", "logit_backward"),
        ),
        shape=strides_from("grad_output", "self"),
    ),
    Operator(("mish_backward",), is_kernel=True, shape=strides_from("grad_output", "self")),
    Operator(("elu_backward",), shape=strides_from("grad_output", "self_or_result")),
    Operator(
        ("leaky_relu_backward", "threshold_backward"), shape=strides_from("self", "grad_output")
    ),
    Operator(("xlogy.Tensor", "copysign.Tensor"), shape=strides_from("self", "other")),
    Operator(("heaviside",), shape=strides_from("self", "values")),
    Operator(("polar",), shape=strides_from("abs", "angle")),
    Operator(("complex",), shape=strides_from("real", "imag")),
    Operator(("binary_cross_entropy_backward",), shape=as_input),
    Operator(("mse_loss_backward", "smooth_l1_loss_backward"), shape=like("self")),
)
