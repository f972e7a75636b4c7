"""Pooling kernels, which copy inputs of another memory format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch._prims_common import suggest_memory_format

from nbmem.virtual.operator_model.operator import Operator, contiguous, outs, outs_then_copies
from nbmem.virtual.tensors.shapes import like

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step


def adaptive_average_backward(launch: Launch) -> Iterator[Step]:
    """Plan the result, then a contiguous gradient.

    In channels last the kernel reads the gradient by its strides and copies nothing.
    """
    yield from outs(launch)
    if suggest_memory_format(launch["self"]) is torch.contiguous_format and launch.outs[0].nbytes:
        yield from contiguous(launch["grad_output"])


def fractional_backward(launch: Launch) -> Iterator[Step]:
    """Plan a contiguous copy of the gradient, then the result."""
    yield from contiguous(launch["grad_output"])
    yield from outs(launch)


OPERATORS = (
    Operator(
        ("avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        memory=outs_then_copies("self", format_of="self"),
        source="aten/src/ATen/native/cuda/AveragePool2d.cu, DilatedMaxPool2d.cu, "
        "DilatedMaxPool3d.cu",
    ),
    Operator(
        ("avg_pool2d_backward",),
        memory=outs_then_copies("self", "grad_output", format_of="self"),
        source="aten/src/ATen/native/cuda/AveragePool2d.cu: "
        "TORCH_IMPL_FUNC(avg_pool2d_backward_out_cuda)",
    ),
    Operator(
        ("max_pool2d_with_indices_backward",),
        memory=outs_then_copies("self", "grad_output", "indices", format_of="self"),
        source="aten/src/ATen/native/cuda/DilatedMaxPool2d.cu: "
        "TORCH_IMPL_FUNC(max_pool2d_with_indices_backward_out_cuda)",
    ),
    Operator(
        ("max_pool3d_with_indices_backward",),
        memory=outs_then_copies("grad_output", "indices", format_of="self"),
        source="aten/src/ATen/native/cuda/DilatedMaxPool3d.cu",
    ),
    Operator(
        ("avg_pool3d_backward", "_adaptive_avg_pool3d_backward"),
        memory=outs_then_copies("grad_output"),
        source="aten/src/ATen/native/cuda/AveragePool3d.cu, AdaptiveAveragePooling3d.cu",
    ),
    Operator(
        ("_adaptive_avg_pool2d_backward",),
        memory=adaptive_average_backward,
        source="aten/src/ATen/native/cuda/AdaptiveAveragePooling.cu: "
        "adaptive_avg_pool2d_backward_out_cuda_template",
    ),
    Operator(
        ("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
        memory=outs_then_copies("grad_output", "indices"),
        source="aten/src/ATen/native/cuda/AdaptiveMaxPooling2d.cu, AdaptiveMaxPooling3d.cu",
    ),
    Operator(
        ("fractional_max_pool2d_backward",),
        memory=fractional_backward,
        source="aten/src/ATen/native/cuda/FractionalMaxPool2d.cu",
    ),
    Operator(("fractional_max_pool3d_backward",), shape=like("self")),
)
