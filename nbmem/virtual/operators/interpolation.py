"""Interpolation, padding and sampling on a grid: copies of gradients that are not contiguous."""

from __future__ import annotations

from nbmem.virtual.operators.operator import Operator, copying

_SHOWN = "none of the H100's runs; the oracle (tests/oracle)"
OPERATORS = (
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
        shown_by=_SHOWN,
    ),
    Operator(
        ("upsample_nearest2d_backward", "_upsample_nearest_exact2d_backward"),
        memory=copying("grad_output", format_of="grad_output"),
        source="aten/src/ATen/native/cuda/UpSampleNearest2d.cu: "
        "upsample_nearest2d_backward_out_cuda_template",
        shown_by=_SHOWN,
    ),
    Operator(
        ("reflection_pad1d_backward", "reflection_pad2d_backward"),
        memory=copying("grad_output"),
        source="aten/src/ATen/native/cuda/ReflectionPad.cu: reflection_pad2d_backward_out_template",
        shown_by=_SHOWN,
    ),
)
