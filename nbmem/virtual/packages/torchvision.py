"""torchvision: buffers that its C++ allocates around its kernels.

Its Meta kernels give the results alone.

https://github.com/pytorch/vision/blob/v0.28.0/torchvision/csrc/ops/cuda/deform_conv2d_kernel.cu
and ps_roi_align_kernel.cu, ps_roi_pool_kernel.cu beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.kernel_rules import KernelRules

if TYPE_CHECKING:
    from torch import Tensor

MOST_AT_ONCE = 32
"""Images that are convolved together: kMaxParallelImgs."""


def _together(images: int) -> int:
    """Return the largest divisor of `images` within `MOST_AT_ONCE`.

    So many images are convolved together.
    """
    return next((n for n in range(MOST_AT_ONCE, 1, -1) if images % n == 0), 1)


def deform_conv2d(
    x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *options: Any
) -> Tensor:
    """Gather the points of a block of images, and multiply them."""
    groups = options[6]
    kept = [one.contiguous() for one in (x, weight, offset, mask, bias)]
    x, weight, bias = kept[0], kept[1], kept[4]
    images, (height, width) = x.size(0), offset.shape[2:]
    out = x.new_zeros(images, weight.size(0), height, width)
    if not images:
        return out
    at_once = _together(images)
    buffer = x.new_zeros(
        images // at_once, groups, weight.size(0) // groups, at_once * height, width
    )
    points = x.size(1) * weight.shape[2:].numel()
    columns = x.new_zeros(points, at_once * height * width)
    by_group = weight.view(groups, -1, *weight.shape[1:])
    for block in buffer:
        for part, filters, column in zip(
            block, by_group, columns.view(groups, -1, columns.size(1)), strict=True
        ):
            part.copy_(part.flatten(1).addmm_(filters.flatten(1), column).view_as(part))
    buffer = buffer.view(images // at_once, weight.size(0), at_once, height, width)
    out.view(images // at_once, at_once, *out.shape[1:]).copy_(buffer.transpose(1, 2))
    return out + bias.view(1, -1, 1, 1)


def deform_conv2d_backward(  # noqa: PLR0913 - the operator's arguments
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of the points, then of the filters."""
    groups = options[6]
    kept = [one.contiguous() for one in (grad, x, weight, offset, mask, bias)]
    grad, x, weight, offset, mask, bias = kept
    at_once = _together(x.size(0)) if x.size(0) else 1
    sizes = (x.size(0) // at_once, at_once, groups, -1, *grad.shape[2:])
    blocks = grad.reshape(sizes).permute(0, 2, 3, 1, 4, 5) if x.size(0) else grad[:0]
    inputs = _gradients_of_points(blocks, x, weight, offset, mask, groups, at_once)
    filters = _gradient_of_filters(blocks, x, weight, groups, at_once)
    value = grad.sum((0, 2, 3))
    return inputs[0], filters, inputs[1], inputs[2], torch.ones_like(bias) * value


def _gradients_of_points(  # noqa: PLR0913 - as the C++ has it
    blocks: Tensor,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    groups: int,
    at_once: int,
) -> list[Tensor]:
    made = [torch.zeros_like(one) for one in (x, offset, mask)]
    if not x.size(0):
        return made
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    places = at_once * blocks.shape[-2:].numel()
    points = x.size(1) * weight.shape[2:].numel()
    columns = x.new_zeros(points, places).view(groups, -1, places)
    for block in blocks:
        columns.zero_()
        for group in range(groups):
            filters = by_group[group].flatten(1).transpose(0, 1)
            columns[group].copy_(columns[group].addmm_(filters, block[group].flatten(1)))
    return made


def _gradient_of_filters(
    blocks: Tensor, x: Tensor, weight: Tensor, groups: int, at_once: int
) -> Tensor:
    made = torch.zeros_like(weight)
    if not x.size(0):
        return made
    buffer = blocks.contiguous()
    by_group = made.view(groups, -1, *weight.shape[1:])
    places = at_once * blocks.shape[-2:].numel()
    columns = x.new_zeros(groups, x.size(1) * weight.shape[2:].numel() // groups, places)
    for block in buffer:
        for part, gradient, column in zip(by_group, block, columns, strict=True):
            sums = part.flatten(1).addmm_(gradient.flatten(1), column.transpose(1, 0))
            part.copy_(sums.view_as(part))
    return made


def ps_roi_backward(grad: Tensor, rois: Tensor, mapping: Tensor, *options: Any) -> Tensor:
    """Return the images' gradient, after making inputs contiguous."""
    del mapping
    made = grad.new_zeros(options[-4:])
    kept = [one.contiguous() for one in (grad, rois)] if grad.numel() else []
    del kept
    return made


RULES = KernelRules(
    operators={
        "torchvision::deform_conv2d": deform_conv2d,
        "torchvision::_deform_conv2d_backward": deform_conv2d_backward,
        "torchvision::_ps_roi_align_backward": ps_roi_backward,
        "torchvision::_ps_roi_pool_backward": ps_roi_backward,
    }
)
