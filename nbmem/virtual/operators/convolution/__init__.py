"""Convolutions by cuDNN: formats, copies and workspaces.

torch's meta kernels forget formats: a convolution on `meta` returns contiguous results for
any input. The shape rules here return CUDA's formats.
"""

from __future__ import annotations

from typing import Any

import torch

from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.operators.convolution import cudnn_kernels, without_cudnn
from nbmem.virtual.operators.convolution.layout import (
    format_of_call,
    kernel_gradient,
    kernel_input,
    layout,
    planar,
    strides,
)
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import Results, TensorSpec, as_meta, infer, one, spec_of

aten = torch.ops.aten


def _check(call: OperatorCall) -> None:
    source, weight = call.args[:2]
    if source.dtype is not weight.dtype:
        raise RuntimeError(
            f"Input type ({source.type()}) and weight type ({weight.type()}) should be the same"
        )
    _check_numbers(call)
    without_cudnn.refuse(call)


def _check_numbers(call: OperatorCall) -> None:
    """Check padding, stride and dilation in torch's order.

    aten/src/ATen/native/Convolution.cpp: check_shape_forward
    """
    for name, least, text in (
        ("padding", 0, "negative padding is not supported"),
        ("output_padding", 0, "negative output_padding is not supported"),
        ("stride", 1, "non-positive stride is not supported"),
        ("dilation", 1, "dilation should be greater than zero"),
    ):
        if any(number < least for number in call.argument(name)):
            raise RuntimeError(text)


def shape(call: OperatorCall) -> Results:
    """Return the result in the format in which the kernel runs."""
    spec = infer(call).fresh[0]
    return one(spec.size, spec.dtype, strides(spec.size, format_of_call(call)[0]))


def shape_backward(call: OperatorCall) -> Results:
    """Return gradients in the formats that cuDNN's kernels suggest.

    The bias's gradient is a vector.

    aten/src/ATen/native/cudnn/ConvShared.cpp: cudnn_convolution_backward
    """
    shapes = list(infer(call).shape)
    source, weight = as_meta(call.args[1]), as_meta(call.args[2])
    runs, native = format_of_call(call)
    if native:
        return _results_in_formats(shapes, [torch.contiguous_format] * 3)
    source = planar(kernel_input(source)).contiguous(memory_format=runs)
    gradient, _ = kernel_gradient(call)
    formats = [layout(gradient, weight), layout(source, gradient), torch.contiguous_format]
    return _results_in_formats(shapes, formats)


def _results_in_formats(specs: list[Any], formats: list[torch.memory_format]) -> Results:
    """Return dense tensors in these formats; None where there is no result."""
    fresh: list[TensorSpec] = []
    shape: list[TensorSpec | None] = []
    for spec, memory_format in zip(specs, formats, strict=True):
        if spec is None:
            shape.append(None)
            continue
        steps = strides(spec.size, memory_format)
        fresh.append(spec_of(spec.size, spec.dtype, len(fresh), steps))
        shape.append(fresh[-1])
    return Results(tuple(shape), tuple(fresh))


def run_traced_convolution(executor: Executor, call: OperatorCall) -> Any:
    """Run `_convolution`, which programs of torch.jit.trace call.

    cuDNN's flags follow the arguments of `convolution`.
    """
    return _as_convolution(executor, call, call.args[:9])


def run_cudnn_convolution(executor: Executor, call: OperatorCall) -> Any:
    """Run `cudnn_convolution` or its transpose, which have no bias."""
    padding = call.argument("padding")
    padded = call.argument("output_padding")
    args = (
        *call.args[:2],
        None,
        call.argument("stride"),
        padding,
        call.argument("dilation"),
        padded is not None,
        padded or [0] * len(padding),
        call.argument("groups"),
    )
    return _as_convolution(executor, call, args)


def _as_convolution(executor: Executor, call: OperatorCall, args: tuple[Any, ...]) -> Any:
    inner = OperatorCall(aten.convolution.default, args, {})
    inner.gpu = call.gpu
    return executor.execute(inner)


_SOURCE = "aten/src/ATen/native/cudnn/ConvShared.cpp and Conv_v8.cpp; Convolution.cpp"
OPERATORS = (
    Operator(
        ("convolution",),
        refuse=_check,
        shape=shape,
        memory=cudnn_kernels.forward,
        source=_SOURCE,
        shown_by="resnet50_b32_sgdm, forward",
    ),
    Operator(
        ("convolution_backward",),
        shape=shape_backward,
        memory=cudnn_kernels.backward,
        source=_SOURCE,
        shown_by="resnet50_b32_sgdm, backward",
    ),
    Operator(("_convolution",), run=run_traced_convolution),
    Operator(("cudnn_convolution", "cudnn_convolution_transpose"), run=run_cudnn_convolution),
)
