"""Interpolation, padding and windows: copies, and results that grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch._prims_common import suggest_memory_format

from nbmem.virtual.operator_model.operator import (
    Operator,
    contiguous,
    drop,
    out,
    outs,
    outs_then_copies,
    temporary,
)
from nbmem.virtual.tensors.shapes import Results, infer

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.shapes import TensorSpec

_PIXEL = 4
"""Channels from which on the kernels for channels_last are taken."""


def shape_of_windows(call: OperatorCall) -> Results:
    """Return a result whose storage is at least as large as the input.

    The result begins with the input's size, and retains that storage if it is smaller.
    """
    spec = infer(call).fresh[0]
    tensor = call.argument("self")
    spec = replace(spec, nbytes=max(spec.nbytes, tensor.numel() * tensor.element_size()))
    return Results(spec, (spec,))


def windows(launch: Launch) -> Iterator[Step]:
    """Yield the input's copy and the result.

    A result that is larger than the input is allocated a second time.
    """
    size = launch["self"].numel() * launch["self"].element_size()
    if launch.outs[0].nbytes > size:
        yield temporary("as the input", size)
    yield from contiguous(launch["self"])
    yield out()
    yield drop("as the input")


def unpooled(launch: Launch) -> Iterator[Step]:
    """Yield copies of the input and of the indices, then the result."""
    yield from contiguous(launch["self"], launch["indices"])
    yield from outs(launch)


def smoothed(launch: Launch) -> Iterator[Step]:
    """Yield the steps of interpolation with antialiasing.

    The kernel has rows of the result and of the input, whatever their format.
    """
    yield out()
    yield from _by_rows(launch, launch["self"])


def nearest(launch: Launch) -> Iterator[Step]:
    """Yield the steps of nearest-neighbor interpolation.

    Pixels of several channels are read as they lie, others by rows.
    """
    yield from _by_pixels(launch, launch["self"])


def of_pixels_backward(launch: Launch) -> Iterator[Step]:
    """Yield the steps of the gradient of a 2-dimensional interpolation.

    Pixels of several channels are read as they lie, others by rows.
    """
    yield from _by_pixels(launch, launch["grad_output"])


def _by_pixels(launch: Launch, tensor: torch.Tensor) -> Iterator[Step]:
    yield out()
    if _has_wide_pixels(launch, tensor):
        yield from contiguous(tensor, format_of=tensor)
    else:
        yield from _by_rows(launch, tensor)


def _has_wide_pixels(launch: Launch, tensor: torch.Tensor) -> bool:
    """Return whether the kernel for channels_last runs."""
    last = torch.channels_last
    return (
        tensor.size(1) >= _PIXEL
        and suggest_memory_format(tensor) is last
        and _strided_as(launch.outs[0], last)
    )


def _by_rows(launch: Launch, tensor: torch.Tensor) -> Iterator[Step]:
    """Yield a contiguous result and a contiguous copy of the argument.

    Each is needed only if the tensor itself is not contiguous.
    """
    if not _strided_as(launch.outs[0], torch.contiguous_format):
        yield temporary("result by rows", launch.outs[0].nbytes)
    yield from contiguous(tensor)


def _strided_as(spec: TensorSpec, layout: torch.memory_format) -> bool:
    meta = torch.empty_strided(spec.size, spec.stride, dtype=spec.dtype, device="meta")
    return meta.is_contiguous(memory_format=layout)


OPERATORS = (
    Operator(
        ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        memory=smoothed,
        source="aten/src/ATen/native/cuda/UpSampleBilinear2d.cu: upsample_gen2d_aa_out_cuda",
    ),
    Operator(
        ("upsample_nearest2d", "_upsample_nearest_exact2d"),
        memory=nearest,
        source="aten/src/ATen/native/cuda/UpSampleNearest2d.cu: "
        "upsample_nearest2d_out_cuda_template",
    ),
    Operator(
        ("max_unpool2d", "max_unpool3d"),
        memory=unpooled,
        source="aten/src/ATen/native/cuda/MaxUnpooling.cu: max_unpooling2d_forward_out_cuda",
    ),
    Operator(
        (
            *("upsample_nearest1d_backward", "_upsample_nearest_exact1d_backward"),
            *("upsample_nearest3d_backward", "_upsample_nearest_exact3d_backward"),
            *("upsample_linear1d_backward", "upsample_trilinear3d_backward"),
            *("upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward"),
            "_upsample_bicubic2d_aa_backward",
        ),
        memory=outs_then_copies("grad_output"),
        source="aten/src/ATen/native/cuda/UpSample*.cu: upsample_*_backward_out_cuda",
    ),
    Operator(
        (
            *("upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward"),
            "upsample_bilinear2d_backward",
        ),
        memory=of_pixels_backward,
        source="aten/src/ATen/native/cuda/UpSampleNearest2d.cu: "
        "upsample_nearest2d_backward_out_cuda_template; UpSampleBilinear2d.cu",
    ),
    Operator(
        ("im2col", "col2im"),
        shape=shape_of_windows,
        memory=windows,
        source="aten/src/ATen/native/cuda/Im2Col.cu: im2col_cuda; Col2Im.cu: col2im_cuda",
    ),
    Operator(
        ("reflection_pad1d_backward", "reflection_pad2d_backward"),
        memory=outs_then_copies("grad_output"),
        source="aten/src/ATen/native/cuda/ReflectionPad.cu: reflection_pad2d_backward_out_template",
    ),
)
