"""The memory format of a convolution, and whether cuDNN runs it.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/Convolution.cpp and ConvUtils.h
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch._prims_common import suggest_memory_format

from nbmem.virtual.devices import META
from nbmem.virtual.operators.convolution.without_cudnn import cudnn_refuses
from nbmem.virtual.tensors.shapes import as_meta
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
MIN_CHANNELS, MIN_WIDTH = 32, 7


def planar(tensor: torch.Tensor) -> torch.Tensor:
    """Add a height of 1 to one-dimensional images (view4d).

    One-dimensional convolutions run as two-dimensional ones.
    """
    if tensor.dim() != 3:
        return tensor
    with DataKernels():
        return tensor.unsqueeze(2)


def kernel_input(tensor: torch.Tensor) -> torch.Tensor:
    """Return an input's geometry as the kernel sees it.

    A one-dimensional input is made contiguous first. Mamba's is a transposed product, whose
    strides would pass for channels-last.
    """
    if tensor.dim() != 3:
        return tensor
    return torch.empty(tensor.size(), dtype=tensor.dtype, device="meta")


def layout(first: torch.Tensor, second: torch.Tensor) -> torch.memory_format:
    """Return channels-last if either suggests it, else contiguous.

    cudnn_conv_suggest_memory_format; float64 is always contiguous.
    """
    first, second = planar(first), planar(second)
    last = _LAST.get(second.dim())
    if last is None or torch.float64 in (first.dtype, second.dtype):
        return torch.contiguous_format
    either = last in (suggest_memory_format(first), suggest_memory_format(second))
    return last if either else torch.contiguous_format


def strides(size: Sequence[int], memory_format: torch.memory_format) -> tuple[int, ...]:
    """Return a dense tensor's strides in that format, also of sequences."""
    if len(size) == 3 and memory_format is torch.channels_last:
        return (size[1] * size[2], 1, size[1])
    known = memory_format if len(size) > 3 else torch.contiguous_format
    return torch.empty(tuple(size), device="meta", memory_format=known).stride()


def format_of_call(call: OperatorCall) -> tuple[torch.memory_format, bool]:
    """Return the format, and whether a kernel of torch's own runs.

    The call is a convolution or its backward.
    """
    source, weight = kernel_input(call.argument("input")), call.argument("weight")
    native = cudnn_refuses(call) or _native_depthwise(call, planar(source), planar(weight))
    return (torch.contiguous_format if native else layout(source, weight)), native


def kernel_gradient(call: OperatorCall) -> tuple[torch.Tensor, bool]:
    """Return the gradient as both kernels get it, and if it is a copy.

    The result's gradient is a meta tensor here. It is moved to the format that the input
    suggests. `to` copies what does not suggest the same format, whatever its strides (images of
    one pixel have both formats). For a transposed convolution, `contiguous` copies what does
    not have that format. cudnn/ConvShared.cpp: cudnn_convolution_backward
    """
    source, gradient = as_meta(call.argument("input")), as_meta(call.argument("grad_output"))
    source, gradient = planar(kernel_input(source)), planar(gradient)
    if call.argument("output_mask")[1]:
        source = source.contiguous(memory_format=format_of_call(call)[0])
    wanted = suggest_memory_format(source)
    if call.argument("transposed"):
        is_copy = not gradient.is_contiguous(memory_format=wanted)
    else:
        is_copy = suggest_memory_format(gradient) is not wanted
    if is_copy:
        size = gradient.size()
        steps = strides(size, wanted)
        gradient = torch.empty_strided(size, steps, dtype=gradient.dtype, device=META)
    return gradient, is_copy


def _native_depthwise(call: OperatorCall, source: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether torch's own depthwise kernel runs.

    It runs in the contiguous format, except for the float16 that cuDNN does faster.
    """
    groups = int(call.argument("groups"))
    if (
        groups == 1
        or call.argument("transposed")
        or source.size(1) != groups
        or weight.size(0) % groups
        or layout(source, weight) is not torch.contiguous_format
    ):
        return False
    faster = (
        source.dtype is torch.float16
        and source.dim() == 4
        and max(call.argument("dilation")) == 1
        and groups >= MIN_CHANNELS
        and _pays(source, weight, call.argument("stride"))
    )
    return not faster


def _pays(source: torch.Tensor, weight: torch.Tensor, stride: Sequence[int]) -> bool:
    """Return whether cuDNN's depthwise kernel is the faster one.

    check_cudnn_depthwise_workload_with_filter.
    """
    rows, channels, height, width = source.size()
    step, window = stride[-1], weight.size(3)
    if height == 1 and step == 1:
        return True
    if min(stride) != max(stride) or weight.size(2) != window or window not in (1, 3, 5):
        return False
    if width < MIN_WIDTH or step not in (1, 2):
        return False
    if step == 1:
        return True
    if rows == 1:
        return window > 1 or width <= 28
    if window == 1:
        return rows <= 16 and channels >= 128 and width <= MIN_WIDTH
    return channels >= 512 or (channels >= 256 and width >= 28)
