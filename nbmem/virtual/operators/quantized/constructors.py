"""Creation of quantized tensors on a card, and their copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch._prims_common import suggest_memory_format

from nbmem.virtual.devices import CUDA, is_virtual
from nbmem.virtual.operator_model.operator import Operator
from nbmem.virtual.operator_model.value_checks import aten_type_name
from nbmem.virtual.tensors.quantized import (
    INTEGERS,
    Affine,
    Channels,
    integers_of,
    quantized,
    quantizer_of,
)
from nbmem.virtual.tensors.shapes import check_devices
from nbmem.virtual.tensors.unsupported import no_such_tensors
from nbmem.virtual.warnings import VALUES

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Handler
    from nbmem.virtual.tensors.operator_call import OperatorCall

_SCHEMES = (
    *(torch.per_tensor_affine, torch.per_channel_affine),
    torch.per_channel_affine_float_qparams,
)


def per_tensor(executor: Executor, call: OperatorCall) -> Any:
    """Run `quantize_per_tensor` for numbers, or for tensors of one number."""
    source, scale, zero_point, dtype = call.args
    with executor:
        if isinstance(source, (list, tuple)):
            parts = zip(source, scale, zero_point, strict=True)
            return [torch.quantize_per_tensor(t, float(s), int(z), dtype) for t, s, z in parts]
        return _from_floats(source, dtype, Affine(float(scale), int(zero_point)))


def dynamic(executor: Executor, call: OperatorCall) -> Any:
    """Run `quantize_per_tensor_dynamic`.

    The scale comes from the smallest and the largest value.
    """
    source, dtype, _ = call.args
    with executor:
        span = float(source.max()) - float(source.min())
        return _from_floats(source, dtype, Affine(abs(span) / 255 or 1.0, 0))


def per_channel(executor: Executor, call: OperatorCall) -> Any:
    """Run `quantize_per_channel`; scales are converted for the quantizer.

    They become float64, and the zero points int64. Float zero points and their scales become
    float32.
    """
    source, scales, zero_points, axis, dtype = call.args
    check_devices(call)
    with executor:
        made = _from_floats(source, dtype, _channels(scales, zero_points, axis))
        check_zero_points(made)
        return made


def check_zero_points(tensor: torch.Tensor) -> None:
    """Allocate and free the scratch memory of the check of zero points.

    The check precedes a kernel per channel. It finds values that are too small or too large.

    aten/src/ATen/native/quantized/AffineQuantizer.cpp: checkZeroPoints
    """
    zero_points = quantizer_of(tensor).zero_points
    if not zero_points.is_floating_point():
        zero_points.ge(0).all()
        zero_points.le(0).all()


def _channels(scales: torch.Tensor, zero_points: torch.Tensor, axis: int) -> Channels:
    floats = zero_points.is_floating_point()
    scheme = torch.per_channel_affine_float_qparams if floats else torch.per_channel_affine
    kinds = (torch.float32, torch.float32) if floats else (torch.float64, torch.int64)
    made = [t.to(kind).contiguous() for t, kind in zip((scales, zero_points), kinds, strict=True)]
    return Channels(made[0], made[1], axis, scheme)


def _from_floats(source: torch.Tensor, dtype: torch.dtype, quantizer: Any) -> torch.Tensor:
    if source.dtype is not torch.float32:
        raise RuntimeError(f"Quantize only works on Float Tensor, got {aten_type_name(source)}")
    like = suggest_memory_format(source)
    integers = torch.empty_like(source, dtype=_integers(dtype), memory_format=like)
    source.contiguous(memory_format=like)  # for the kernel, and freed after it
    return quantized(integers, dtype, quantizer)


def _integers(dtype: torch.dtype) -> torch.dtype:
    if dtype not in INTEGERS:
        raise no_such_tensors(f"of the type {dtype}")
    return INTEGERS[dtype]


def empty(quantizer: Any) -> Handler:
    """Return a handler of `_empty_affine_quantized` and the like.

    `quantizer` reads the quantizer from a call.
    """

    def made(executor: Executor, call: OperatorCall) -> Any:
        with executor:
            integers = torch.empty(
                tuple(call.argument("size")),
                dtype=_integers(call.kwargs["dtype"]),
                device=CUDA[call.gpu.index],
                memory_format=call.argument("memory_format") or torch.contiguous_format,
            )
            return quantized(integers, call.kwargs["dtype"], quantizer(call))

    return made


def _affine(call: OperatorCall) -> Affine:
    return Affine(float(call.argument("scale", 1)), int(call.argument("zero_point", 0)))


def _by_channel(call: OperatorCall) -> Channels:
    return _channels(*(call.argument(name) for name in ("scales", "zero_points", "axis")))


def to_copy(executor: Executor, call: OperatorCall) -> Any:
    """Run `.to()`, `.cuda()` and `.cpu()` of a quantized tensor."""
    source = call.args[0]
    device = call.kwargs.get("device") or source.device
    if call.kwargs.get("dtype") not in (None, source.dtype):
        raise NotImplementedError(
            "Could not run 'aten::_to_copy' with arguments from the 'QuantizedCUDA' backend."
        )
    if device.type == "cpu":
        return to_cpu(executor, call, source)
    if source.qscheme() not in _SCHEMES:
        raise no_such_tensors(f"of the scheme {source.qscheme()}")
    with executor:
        if is_virtual(source):
            integers, quantizer = integers_of(source), quantizer_of(source)
        else:
            integers, quantizer = source.int_repr(), _of_cpu(source, device)
        return quantized(integers.to(device), source.dtype, _there(quantizer, device))


def _of_cpu(source: torch.Tensor, device: torch.device) -> Affine | Channels:
    if source.qscheme() is torch.per_tensor_affine:
        return Affine(source.q_scale(), source.q_zero_point())
    scales, zero_points = source.q_per_channel_scales(), source.q_per_channel_zero_points()
    axis, scheme = source.q_per_channel_axis(), source.qscheme()
    return Channels(scales.to(device), zero_points.to(device), axis, scheme)


def _there(quantizer: Affine | Channels, device: torch.device) -> Affine | Channels:
    if isinstance(quantizer, Affine):
        return quantizer
    scales, zero_points = quantizer.scales.to(device), quantizer.zero_points.to(device)
    return quantizer._replace(scales=scales, zero_points=zero_points)


def to_cpu(executor: Executor, call: OperatorCall, source: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU, with true scales where they are known."""
    call.gpu.note(VALUES)
    quantizer = quantizer_of(source)
    integers = executor.values.on_cpu(integers_of(source))
    if isinstance(quantizer, Affine):
        with _C._DisableTorchDispatch():
            return torch._make_per_tensor_quantized_tensor(
                integers, quantizer.scale, quantizer.zero_point
            )
    scales, zero_points = map(executor.values.on_cpu, (quantizer.scales, quantizer.zero_points))
    with _C._DisableTorchDispatch():
        return torch._make_per_channel_quantized_tensor(
            integers, scales, zero_points, quantizer.axis
        )


OPERATORS = (
    Operator(
        (
            *("quantize_per_tensor", "quantize_per_tensor.tensor_qparams"),
            "quantize_per_tensor.tensors",
        ),
        run=per_tensor,
    ),
    Operator(("quantize_per_tensor_dynamic",), run=dynamic),
    Operator(("quantize_per_channel",), run=per_channel),
    Operator(("_empty_affine_quantized",), run=empty(_affine)),
    Operator(("_empty_per_channel_affine_quantized",), run=empty(_by_channel)),
)
