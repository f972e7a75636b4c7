"""Normalisation and softmax: kernels that want contiguous inputs copy others first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._prims_common import suggest_memory_format

from nbmem.virtual.kernels.plan import DNN, Kernel, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step


def contiguous(*tensors: Any) -> Iterator[Step]:
    """Copies of the arguments that are not contiguous; they live until the kernel is launched."""
    for number, tensor in enumerate(tensors):
        if tensor is not None and not tensor.is_contiguous():
            yield temporary(f"contiguous {number}", tensor.numel() * tensor.element_size())


def _outs(launch: Launch) -> Iterator[Step]:
    for number in range(len(launch.outs)):
        yield out(number)


def on_input(launch: Launch) -> Iterator[Step]:
    """The input is made contiguous."""
    yield from contiguous(launch.call.args[0])
    yield from _outs(launch)


def on_gradient_and_input(launch: Launch) -> Iterator[Step]:
    """The gradient and the input (or result) are made contiguous."""
    yield from contiguous(launch.call.args[0], launch.call.args[1])
    yield from _outs(launch)


def batch_norm(launch: Launch) -> Iterator[Step]:
    """cuDNN's kernel; without an activation in it, it keeps no reserve."""
    yield from _outs(launch)
    yield DNN


def batch_norm_backward(launch: Launch) -> Iterator[Step]:
    """The gradient is brought into the input's format."""
    gradient, wanted = launch["grad_output"], suggest_memory_format(launch["input"])
    if not gradient.is_contiguous(memory_format=wanted):
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    yield from batch_norm(launch)


KERNELS = (
    Kernel(
        ops=("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax"),
        rule=on_input,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: layer_norm_cuda; SoftMax.cu",
        shown_by="vit_b_16_b32_adamw, forward",
    ),
    Kernel(
        ops=("native_layer_norm_backward", "_softmax_backward_data", "_log_softmax_backward_data"),
        rule=on_gradient_and_input,
        source="aten/src/ATen/native/cuda/layer_norm_kernel.cu: layer_norm_backward_cuda; "
        "SoftMax.cu",
        shown_by="vit_b_16_b32_adamw, backward",
    ),
    Kernel(
        ops=("cudnn_batch_norm",),
        rule=batch_norm,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
    Kernel(
        ops=("cudnn_batch_norm_backward",),
        rule=batch_norm_backward,
        source="aten/src/ATen/native/cudnn/BatchNorm.cpp",
        shown_by="resnet50_b32_sgdm",
    ),
)
