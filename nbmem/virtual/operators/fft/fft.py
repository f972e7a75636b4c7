"""Fourier transforms by cuFFT, with copies of unsupported inputs.

Inputs are copied if cuFFT cannot step through them. The work area of its plans is 0.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cuda/SpectralOps.cpp
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import Launch, Operator, Step, drop, out, temporary
from nbmem.virtual.operators.fft import half_fft

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

MOST_DIMS = 3
"""Of one plan of cuFFT's (cufft_max_ndim)."""


def _fits_one_plan(dims: Sequence[int]) -> bool:
    """Return whether one plan does it all (use_optimized_cufft_path)."""
    return len(dims) <= MOST_DIMS and list(dims[:2]) != [0, 1]


def _input_copy(tensor: torch.Tensor, dims: Sequence[int]) -> Iterator[Step]:
    """Yield a copy of the input if a plan needs one (_exec_fft).

    Batches are collapsed into one dimension, which may copy. Strides of 0 are copied, too.
    """
    if not tensor.numel():
        return
    batches = sorted(set(range(tensor.dim())) - set(dims), key=lambda d: -tensor.stride(d))
    ordered = tensor.permute(*batches, *dims)
    flat = ordered.reshape(-1, *ordered.size()[len(batches) :])
    copied = flat.untyped_storage()._cdata != tensor.untyped_storage()._cdata
    if copied or not _embedded(flat):
        yield temporary("cloned", tensor.numel() * tensor.element_size())


def _embedded(flat: torch.Tensor) -> bool:
    """Return whether cuFFT can express these strides (as_cufft_embed)."""
    last = flat.stride(-1)
    if last != 1 and flat.dtype in half_fft.HALVES:
        return False  # as the oracle has it
    if last <= 0 or (flat.size(0) != 1 and flat.stride(0) == 0):
        return False
    for size, stride in list(zip(flat.size(), flat.stride(), strict=True))[-2:0:-1]:
        if size != 1:
            if stride <= 0 or stride % last:
                return False
            last = stride
    return True


def _dims(launch: Launch) -> list[int]:
    return [dim % launch["self"].dim() for dim in launch["dim"]]


def real_to_complex(launch: Launch) -> Iterator[Step]:
    """Yield the result, copies for the plans and a second buffer.

    If one plan cannot do all dimensions, those after the first plan's go back and forth between
    the result and another tensor.
    """
    dims = _dims(launch)
    yield out()
    if _fits_one_plan(dims):
        yield from _input_copy(launch["self"], dims)
        return
    yield from _input_copy(launch["self"], dims[-1:])
    yield drop("cloned")
    if len(dims) > 1:
        yield temporary("other", launch.outs[0].nbytes)
        half = torch.empty(launch.outs[0].size, dtype=launch.outs[0].dtype, device="meta")
        yield from _input_copy(half, dims[:-1][-MOST_DIMS:])
        yield drop("cloned")


def complex_to_complex(launch: Launch) -> Iterator[Step]:
    """Yield the result, and a copy for the first plan if it needs one.

    Other dimensions are transformed in place.
    """
    if launch.outs:
        yield out()
        yield from _input_copy(launch["self"], _dims(launch)[-MOST_DIMS:])


def complex_to_real(launch: Launch) -> Iterator[Step]:
    """Yield the result and a clone of the input, which cuFFT may overwrite.

    With several plans the clone holds what the other dimensions gave.
    """
    tensor, dims = launch["self"], _dims(launch)
    yield out()
    if not tensor.numel():
        return
    yield temporary("input", tensor.numel() * tensor.element_size())
    if _fits_one_plan(dims) or len(dims) == 1:
        tensor, last = tensor.contiguous(), dims
    else:
        yield from _input_copy(tensor, dims[:-1])
        yield drop("cloned")
        size = tensor.size()
        tensor, last = tensor.new_empty(size), dims[-1:]
    yield from _input_copy(tensor, last)


_SOURCE = "aten/src/ATen/native/cuda/SpectralOps.cpp: "


def _check_half(call: OperatorCall) -> None:
    """Refuse half-precision sizes that cuFFT does not support."""
    tensor = call.args[0]
    size = [tensor.size(dim) for dim in call.argument("dim")]
    last = call.argument("last_dim_size")
    size = size if last is None else [*size[:-1], last]
    if tensor.dtype in half_fft.HALVES and any(n & (n - 1) for n in size):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
            f"precision, but got a signal size of{size}"
        )


OPERATORS = (
    *(Operator((name,), composite=transform) for name, transform in half_fft.composites()),
    Operator(
        ("_fft_r2c",), refuse=_check_half, memory=real_to_complex, source=_SOURCE + "_fft_r2c_cufft"
    ),
    Operator(
        ("_fft_c2c",),
        refuse=_check_half,
        memory=complex_to_complex,
        source=_SOURCE + "_fft_c2c_cufft",
    ),
    Operator(
        ("_fft_c2r",), refuse=_check_half, memory=complex_to_real, source=_SOURCE + "_fft_c2r_cufft"
    ),
)
