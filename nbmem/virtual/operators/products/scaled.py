"""Products of 8-bit and narrower types with scales, and grouped products.

Their allocations were read from torch 2.13's CUDA build without a card (tests/oracle), for
the H100, L40S, A100 and B200.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import BLAS, Launch, Operator, Step, drop, out, temporary
from nbmem.virtual.tensors.shapes import Results, infer, one

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

HOPPER, BLACKWELL = (9, 0), (10, 0)
SMALL = 128
"""Rows or columns up to which Blackwell takes tiles of one multiprocessor each."""


def _check_scaled(call: OperatorCall) -> None:
    capability = call.gpu.card.capability
    if capability != (8, 9) and capability < HOPPER:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or "
            "8.9, or ROCm MI300+"
        )
    left, right = call.args[:2]
    if left.dtype is right.dtype is torch.float8_e5m2:
        raise ValueError("Multiplication of two Float8_e5m2 matrices is not supported")
    if _is_mxfp4(call):
        if not isinstance(call.argument("scale_a"), (list, tuple)):
            raise RuntimeError("Invalid scaling configuration.")
        if capability not in {BLACKWELL, (10, 3)}:
            raise NotImplementedError("MXFP4 scaling only supported in CUDA for B200/B300")


def _is_mxfp4(call: OperatorCall) -> bool:
    """Return True for packed 4-bit values with exponents as scales (MXFP4)."""
    kind = _first_scale(call).dtype
    return call.args[0].dtype is torch.float4_e2m1fn_x2 and kind is torch.float8_e8m0fnu


def _first_scale(call: OperatorCall) -> torch.Tensor:
    scale = call.argument("scale_a")
    found: torch.Tensor = scale[0] if isinstance(scale, (list, tuple)) else scale
    return found


def of_scaled(call: OperatorCall) -> Results:
    """Return the result of `_scaled_mm`, by torch's Meta kernel if it can.

    For MXFP4 the Meta kernel expects scales for bytes instead of values, so it is not used.
    """
    if not _is_mxfp4(call):
        return infer(call)
    left, right = call.args[:2]
    return one((left.size(0), right.size(1)), call.argument("out_dtype") or left.dtype)


def _check_groups(call: OperatorCall) -> None:
    """Refuse operands whose rows or columns are not dense and 16-byte aligned.

    aten/src/ATen/native/GroupedMMUtils.h: check_valid_strides_and_return_transposed
    """
    for operand in call.args[:2]:
        strides, sizes = operand.stride(), operand.size()
        for near, far in ((-2, -1), (-1, -2)):
            if strides[near] == 1 and strides[far] >= max(1, sizes[near]):
                if strides[far] * operand.element_size() % 16:
                    raise RuntimeError("strides should be multiple of 16 bytes")
                break
        else:
            raise RuntimeError(
                f"Invalid strides/sizes, got {list(strides)} for strides "
                f"and {list(sizes)} for sizes"
            )


def _check_scaled_groups(call: OperatorCall) -> None:
    if call.gpu.card.capability not in {HOPPER, BLACKWELL}:
        raise ValueError(
            "torch._scaled_grouped_mm is only supported on CUDA devices with compute capability = "
            "[9.0, 10.0], or ROCm MI300+"
        )


def _check_mixed(call: OperatorCall) -> None:
    if call.gpu.card.capability[0] != 8:
        raise RuntimeError(
            "_mixed_dtypes_linear: Supported only on GPUs with compute capability 8.x"
        )


def scaled(launch: Launch) -> Iterator[Step]:
    """Plan the result, then cuBLASLt's workspace.

    Off Hopper, scales per row are multiplied by CUTLASS without a workspace.
    """
    yield out()
    first = _first_scale(launch.call)
    rows = launch.call.args[0].size(0)
    by_row = first.dtype is torch.float32 and first.numel() == rows > 1
    if not by_row or launch.card.capability == HOPPER:
        yield BLAS


def shape_grouped_mm(call: OperatorCall) -> Results:
    """Return the result of a grouped product.

    CUDA takes float32 and float16, too. Rows of the result begin at multiples of 16 bytes.

    aten/src/ATen/native/GroupedMMUtils.h: create_grouped_gemm_output_tensor
    """
    left, right = call.args[:2]
    rows, columns = left.size(-2), right.size(-1)
    if left.dim() == right.dim():
        groups = left.size(0) if left.dim() == 3 else call.argument("offs").size(0)
        size: tuple[int, ...] = (groups, rows, columns)
    else:
        size = (rows, columns)
    dtype = call.argument("out_dtype") or (
        torch.bfloat16 if left.dtype.itemsize == 1 else left.dtype
    )
    unit = 16 // dtype.itemsize
    padded = -(-columns // unit) * unit
    stride = (rows * padded, padded, 1)[-len(size) :]
    return one(size, dtype, stride)


def grouped_mm(launch: Launch) -> Iterator[Step]:
    """Plan the result, each group's arguments, and a descriptor workspace.

    aten/src/ATen/native/cuda/GroupMM.cu, ScaledGroupMM.cu: input_args_size, get_workspace_size.
    Other types and cards take one product after another.
    """
    yield out()
    left, right = launch.call.args[:2]
    has_scales = left.dtype.itemsize == 1
    capability = launch.card.capability
    if capability not in {HOPPER, BLACKWELL} or not (has_scales or left.dtype is torch.bfloat16):
        return
    count = _groups(launch)
    pointers = 5 if has_scales else 3  # to two operands and a result, and to two scales
    aligned = -(-count // 2) * 2
    yield temporary("arguments", 8 * aligned * pointers + (12 + 24) * count)
    parts = 2  # of 256 bytes for each multiprocessor
    if capability == BLACKWELL and not has_scales:
        parts = 21 if min(left.size(-2), right.size(-1)) <= SMALL else 23
    yield temporary("workspace", parts * 256 * launch.card.processors)


def _groups(launch: Launch) -> int:
    three = next((t for t in launch.call.args[:2] if t.dim() == 3), None)
    return int(launch["offs"].size(0) if three is None else three.size(0))


def by_int8(launch: Launch) -> Iterator[Step]:
    """Plan `_weight_int8pack_mm`: half types are computed in float32.

    aten/src/ATen/native/cuda/int8mm.cu
    """
    tensor, weight = launch.call.args[:2]
    if tensor.dtype is torch.float32:
        yield out()
        return
    rows, columns = tensor.size(0), weight.size(0)
    yield temporary("operand", 4 * tensor.numel())
    yield temporary("scales", 4 * columns)
    yield temporary("product", 4 * rows * columns)
    yield out()
    for name in ("product", "scales", "operand"):
        yield drop(name)


def by_int4(call: OperatorCall) -> Results:
    """Return a row per row of the left operand, with 8 columns per tile."""
    tensor, packed = call.args[:2]
    return one((tensor.size(0), 8 * packed.size(0)), tensor.dtype)


def shape_mixed_linear(call: OperatorCall) -> Results:
    """Return a result with one column per scale."""
    tensor, _, scales = call.args[:3]
    return one((*tensor.size()[:-1], scales.size(0)), tensor.dtype)


def compressed(call: OperatorCall) -> Results:
    """Return the compressed size: half of the values, and their positions.

    The share is 9/16, or 10/16 where a value has one byte.

    aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp: _cslt_compress
    """
    dense = call.args[0]
    share = 10 if dense.element_size() == 1 else 9
    return one((dense.size(0), dense.size(1) * share // 16), dense.dtype)


_BLAS = "aten/src/ATen/native/cuda/ScaledBlas.cpp"
_SHOWN = "tests/oracle on the H100, L40S, A100 and B200"
_GROUPS = "aten/src/ATen/native/cuda/GroupMM.cu, ScaledGroupMM.cu"
OPERATORS = (
    Operator(
        ("_scaled_mm", "_scaled_mm_v2"),
        refuse=_check_scaled,
        shape=of_scaled,
        memory=scaled,
        source=_BLAS,
        shown_by=_SHOWN,
    ),
    Operator(
        ("_grouped_mm",),
        refuse=_check_groups,
        shape=shape_grouped_mm,
        memory=grouped_mm,
        source=_GROUPS,
        shown_by=_SHOWN,
    ),
    Operator(
        ("_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
        refuse=_check_scaled_groups,
        shape=shape_grouped_mm,
        memory=grouped_mm,
        source=_GROUPS,
        shown_by=_SHOWN,
    ),
    Operator(
        ("_weight_int8pack_mm",),
        memory=by_int8,
        source="aten/src/ATen/native/cuda/int8mm.cu",
        shown_by=_SHOWN,
    ),
    Operator(("_weight_int4pack_mm",), shape=by_int4),
    Operator(("_mixed_dtypes_linear",), refuse=_check_mixed, shape=shape_mixed_linear),
    Operator(("_cslt_compress",), shape=compressed),
)
