"""Shapes of operators for which torch has a CUDA kernel, but no shape rule or a narrower one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.tensors.calls import operator_of
from nbmem.virtual.tensors.shapes import Results, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbmem.virtual.tensors.calls import Call

_LIKE = {
    "_ctc_loss_backward": "log_probs",
    "_dirichlet_grad": "x",
    "_logcumsumexp": "self",
    "_masked_softmax": "self",
    "_masked_softmax_backward": "grad_output",
    "_sample_dirichlet": "self",
    "_standard_gamma_grad": "self",
    "batch_norm_backward_elemt": "input",
    "batch_norm_elemt": "input",
    "binomial": "count",
    "fractional_max_pool3d_backward": "self",
    "glu_backward_jvp": "grad_x",
    "glu_jvp": "glu",
    "multi_margin_loss_backward": "self",
    "multilabel_margin_loss_backward": "self",
}
"""One result with the shape and the type of this argument."""

_Size = tuple[tuple[int, ...], torch.dtype]


def _like(name: str) -> Callable[[Call], Iterator[_Size]]:
    def rule(call: Call) -> Iterator[_Size]:
        tensor = call.argument(name)
        yield tuple(tensor.size()), tensor.dtype

    return rule


def _aminmax(call: Call) -> Iterator[_Size]:
    tensor, dim = call.args[0], call.argument("dim")
    size = list(tensor.size())
    if dim is None:
        size = []
    elif size:
        size[dim : dim % len(size) + 1] = [1] if call.argument("keepdim") else []
    yield tuple(size), tensor.dtype
    yield tuple(size), tensor.dtype


def _geqrf(call: Call) -> Iterator[_Size]:
    tensor = call.args[0]
    *batch, rows, columns = tensor.size()
    yield tuple(tensor.size()), tensor.dtype
    yield (*batch, min(rows, columns)), tensor.dtype


def _linear_combination(call: Call) -> Iterator[_Size]:
    tensor, coefficients = call.args
    yield (coefficients.size(0), *tensor.size()[1:]), tensor.dtype


def _fake_quantized(call: Call) -> Iterator[_Size]:
    """And where the value was within the range."""
    tensor = call.args[0]
    yield tuple(tensor.size()), tensor.dtype
    yield tuple(tensor.size()), torch.bool


def _dequantized(call: Call) -> Iterator[_Size]:
    yield tuple(call.args[0].size()), torch.float32


def _lstsq(call: Call) -> Iterator[_Size]:
    """Solution, residuals where there are more equations than unknowns; no rank, no values."""
    left, right = call.args[:2]
    *batch, rows, columns = left.size()
    tail = tuple(right.size()[len(batch) + 1 :])
    yield (*batch, columns, *tail), left.dtype
    yield ((*batch, *tail) if rows > columns else (0,)), left.dtype
    yield (0,), torch.int64
    yield (0,), left.dtype


def _statistics(count: int) -> Callable[[Call], Iterator[_Size]]:
    """Numbers per channel, in float32 for half types."""

    def rule(call: Call) -> Iterator[_Size]:
        tensor = call.argument("input")
        half = tensor.dtype in (torch.float16, torch.bfloat16)
        for _ in range(count):
            yield (tensor.size(1),), torch.float32 if half else tensor.dtype

    return rule


_RULES: dict[str, Callable[[Call], Iterator[_Size]]] = {
    **{name: _like(argument) for name, argument in _LIKE.items()},
    "_aminmax": _aminmax,
    "_aminmax.dim": _aminmax,
    "_compute_linear_combination": _linear_combination,
    "batch_norm_backward_reduce": _statistics(4),
    "batch_norm_gather_stats": _statistics(2),
    "batch_norm_gather_stats_with_counts": _statistics(2),
    "batch_norm_stats": _statistics(2),
    "batch_norm_update_stats": _statistics(2),
    "fake_quantize_per_channel_affine_cachemask": _fake_quantized,
    "fake_quantize_per_tensor_affine_cachemask": _fake_quantized,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _fake_quantized,
    "dequantize.self": _dequantized,
    "geqrf": _geqrf,
    "linalg_lstsq": _lstsq,
}


def grouped_product(call: Call) -> Results:
    """CUDA takes float32 and float16, too; rows of the result begin at multiples of 16 bytes.

    aten/src/ATen/native/GroupedMMUtils.h: create_grouped_gemm_output_tensor
    """
    left, right = call.args[:2]
    rows, columns = left.size(-2), right.size(-1)
    if left.dim() == right.dim():
        groups = left.size(0) if left.dim() == 3 else call.argument("offs").size(0)
        size: tuple[int, ...] = (groups, rows, columns)
    else:
        size = (rows, columns)
    dtype = call.argument("out_dtype") or left.dtype
    unit = 16 // dtype.itemsize
    padded = -(-columns // unit) * unit
    stride = (rows * padded, padded, 1)[-len(size) :]
    spec = spec_of(size, dtype, 0, stride)
    return Results(spec, (spec,))


def _results(rule: Callable[[Call], Iterator[_Size]]) -> Callable[[Call], Results]:
    def shape(call: Call) -> Results:
        specs = tuple(spec_of(size, kind, at) for at, (size, kind) in enumerate(rule(call)))
        return Results(specs[0] if len(specs) == 1 else specs, specs)

    return shape


MISSING: dict[Any, Callable[[Call], Results]] = {
    operator: _results(rule)
    for name, rule in _RULES.items()
    if (operator := operator_of(name)) is not None
}
if (_product := operator_of("_grouped_mm")) is not None:
    MISSING[_product] = grouped_product
