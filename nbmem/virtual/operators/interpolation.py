"""Interpolation, padding and windows: copies of gradients, and results that grow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.virtual.operators.operator import (
    BY_ORACLE,
    Operator,
    contiguous,
    copying,
    drop,
    out,
    outs,
    temporary,
)
from nbmem.virtual.tensors.shapes import Results, infer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step
    from nbmem.virtual.tensors.calls import OperatorCall


def shape_of_windows(call: OperatorCall) -> Results:
    """The result begins as large as the input, and keeps that storage where it is smaller."""
    spec = infer(call).fresh[0]
    tensor = call.argument("self")
    spec = replace(spec, nbytes=max(spec.nbytes, tensor.numel() * tensor.element_size()))
    return Results(spec, (spec,))


def windows(launch: Launch) -> Iterator[Step]:
    """A result that is larger than the input is allocated a second time."""
    size = launch["self"].numel() * launch["self"].element_size()
    if launch.outs[0].nbytes > size:
        yield temporary("as the input", size)
    yield from contiguous(launch["self"])
    yield out()
    yield drop("as the input")


def unpooled(launch: Launch) -> Iterator[Step]:
    """Copies of input and places before the result."""
    yield from contiguous(launch["self"], launch["indices"])
    yield from outs(launch)


OPERATORS = (
    Operator(
        ("max_unpool2d", "max_unpool3d"),
        memory=unpooled,
        source="aten/src/ATen/native/cuda/MaxUnpooling.cu: max_unpooling2d_forward_out_cuda",
        shown_by=BY_ORACLE,
    ),
    Operator(
        (
            *("upsample_nearest1d_backward", "_upsample_nearest_exact1d_backward"),
            *("upsample_nearest3d_backward", "_upsample_nearest_exact3d_backward"),
            *("upsample_linear1d_backward", "upsample_trilinear3d_backward"),
            *("upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward"),
            *("_upsample_bicubic2d_aa_backward", "upsample_bilinear2d_backward"),
        ),
        memory=copying("grad_output"),
        source="aten/src/ATen/native/cuda/UpSample*.cu: upsample_*_backward_out_cuda",
        shown_by=BY_ORACLE,
    ),
    Operator(
        ("upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward"),
        memory=copying("grad_output", format_of="grad_output"),
        source="aten/src/ATen/native/cuda/UpSampleNearest2d.cu: "
        "upsample_nearest2d_backward_out_cuda_template",
        shown_by=BY_ORACLE,
    ),
    Operator(
        ("im2col", "col2im"),
        shape=shape_of_windows,
        memory=windows,
        source="aten/src/ATen/native/cuda/Im2Col.cu: im2col_cuda; Col2Im.cu: col2im_cuda",
        shown_by=BY_ORACLE,
    ),
    Operator(
        ("reflection_pad1d_backward", "reflection_pad2d_backward"),
        memory=copying("grad_output"),
        source="aten/src/ATen/native/cuda/ReflectionPad.cu: reflection_pad2d_backward_out_template",
        shown_by=BY_ORACLE,
    ),
)
