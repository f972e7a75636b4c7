"""Normalization: CUDA's kernels, their copies and their sums."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nbmem.virtual.operator_model.operator import Operator
from nbmem.virtual.operator_model.value_checks import aten_type_name
from nbmem.virtual.operators.norm import norm_kernels
from nbmem.virtual.operators.norm.choice import batch_norm, is_composite_here, rms_norm
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import Results, infer, like, several


def _check_weight(call: OperatorCall) -> None:
    source, weight = call.args[0], call.argument("weight")
    if weight is not None and weight.dtype is not source.dtype:
        raise RuntimeError(
            f"expected scalar type {aten_type_name(source)} but found {aten_type_name(weight)}"
        )


def _statistics(count: int) -> Callable[[OperatorCall], Results]:
    """Return a shape rule for numbers per channel.

    They are in float32 for half types.
    """

    def rule(call: OperatorCall) -> Results:
        tensor = call.argument("input")
        half = tensor.dtype in (torch.float16, torch.bfloat16)
        dtype = torch.float32 if half else tensor.dtype
        return several(*[((tensor.size(1),), dtype)] * count)

    return rule


def _on_contiguous_input(call: OperatorCall) -> Results:
    """Return contiguous results, whatever the strides of the arguments.

    torch's rule would preserve those strides.
    """
    args, kwargs = call.map(lambda t: torch.empty(t.size(), dtype=t.dtype, device="meta"))
    return infer(OperatorCall(call.func, args, kwargs))


OPERATORS = (
    Operator(("batch_norm",), composite=batch_norm),
    Operator(("rms_norm",), composite=rms_norm if is_composite_here() else None),
    Operator(
        ("native_layer_norm",),
        refuse=_check_weight,
        shape=_on_contiguous_input,
        memory=norm_kernels.contiguous_input_norm,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: layer_norm_cuda",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Operator(
        ("_fused_rms_norm",),
        memory=norm_kernels.contiguous_input_norm,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: layer_norm_cuda",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Operator(
        ("native_layer_norm_backward",),
        shape=_on_contiguous_input,
        memory=norm_kernels.rows_backward,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel",
        shown_by="swin_t_b32_adamw and convnext_tiny_b32_adamw, backward",
    ),
    Operator(
        ("_fused_rms_norm_backward",),
        memory=norm_kernels.rows_backward,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel",
        shown_by="swin_t_b32_adamw and convnext_tiny_b32_adamw, backward",
    ),
    Operator(
        ("native_group_norm",),
        memory=norm_kernels.group_norm,
        source="aten/src/ATen/native/cuda/group_norm_kernel.cu: GroupNormKernelImplInternal",
    ),
    Operator(
        ("native_group_norm_backward",),
        memory=norm_kernels.group_norm_backward,
        source="aten/src/ATen/native/cuda/group_norm_kernel.cu: "
        "GroupNormBackwardKernelImplInternal",
    ),
    Operator(
        ("native_batch_norm",),
        memory=norm_kernels.native_batch_norm,
        source="aten/src/ATen/native/cuda/Normalization.cu: batch_norm_cuda",
        shown_by="resnet50_b64_sgdm_ampbf16",
    ),
    Operator(
        ("native_batch_norm_backward",),
        memory=norm_kernels.native_batch_norm_backward,
        source="aten/src/ATen/native/cuda/Normalization.cu: batch_norm_backward_cuda",
        shown_by="resnet50_b64_sgdm_ampbf16",
    ),
    Operator(
        ("batch_norm_backward",),
        memory=norm_kernels.batch_norm_backward,
        source="aten/src/ATen/native/cuda/Normalization.cu: _new_batch_norm_backward_cuda",
    ),
    Operator(
        ("cudnn_batch_norm",),
        memory=norm_kernels.cudnn_batch_norm,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
    Operator(
        ("cudnn_batch_norm_backward",),
        memory=norm_kernels.cudnn_batch_norm_backward,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
    Operator(("batch_norm_elemt", "batch_norm_backward_elemt"), shape=like("input")),
    Operator(("batch_norm_backward_reduce",), shape=_statistics(4)),
    Operator(
        (
            *("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
            *("batch_norm_stats", "batch_norm_update_stats"),
        ),
        shape=_statistics(2),
    ),
)
