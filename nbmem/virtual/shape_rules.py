"""Shapes that torch's own rules do not give as CUDA does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.calls import Call
from nbmem.virtual.kernels.convolution_layout import layout, of_call, planar, strides
from nbmem.virtual.missing_rules import MISSING
from nbmem.virtual.shapes import Results, as_meta, infer, spec_of
from nbmem.virtual.values import dense

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.virtual.shapes import TensorSpec

aten = torch.ops.aten


def _one(size: Any, dtype: torch.dtype, stride: tuple[int, ...] | None = None) -> Results:
    spec = spec_of(tuple(size), dtype, 0, stride)
    return Results(spec, (spec,))


def softmax(call: Call) -> Results:
    """CUDA writes float32 from bfloat16, too; the rule of the CPU knows float16 only."""
    tensor = call.args[0]
    to_float = bool(call.argument("half_to_float"))
    return _one(tensor.size(), torch.float32 if to_float else tensor.dtype)


def softmax_backward(call: Call) -> Results:
    """The gradient has the input's type."""
    gradient = call.args[0]
    return _one(gradient.size(), call.argument("input_dtype"))


def clone(call: Call) -> Results:
    """As torch.clone, also for geometries that overlap."""
    tensor, layout = call.args[0], call.argument("memory_format")
    if layout is None or layout is torch.preserve_format:
        return _one(tensor.size(), tensor.dtype, dense(tensor))
    meta = torch.empty(tensor.size(), device="meta", memory_format=layout)
    return _one(tensor.size(), tensor.dtype, meta.stride())


def convolution(call: Call) -> Results:
    """The result has the format in which the kernel runs."""
    spec = infer(call).fresh[0]
    return _one(spec.size, spec.dtype, strides(spec.size, of_call(call)[0]))


def convolution_backward(call: Call) -> Results:
    """Gradients have the formats that cuDNN's kernels suggest for them, the bias's is a vector.

    aten/src/ATen/native/cudnn/ConvShared.cpp: cudnn_convolution_backward
    """
    shapes = list(infer(call).shape)
    gradient, source, weight = (as_meta(t) for t in call.args[:3])
    runs, native = of_call(call)
    if native:
        return _several(shapes, [torch.contiguous_format] * 3)
    source = planar(source).contiguous(memory_format=runs)
    gradient = planar(gradient).contiguous(memory_format=layout(source, source))
    formats = [layout(gradient, weight), layout(source, gradient), torch.contiguous_format]
    return _several(shapes, formats)


def loss(call: Call) -> Results:
    """A reduced loss stays in the storage of the losses of all elements, shrunk to one number.

    aten/src/ATen/native/Loss.cpp: TORCH_META_FUNC(mse_loss) (resize_), soft_margin_loss_out;
    aten/src/ATen/native/cuda/Loss.cu: binary_cross_entropy_out_cuda
    """
    spec = infer(call).fresh[0]
    source, target = call.args[:2]
    whole = torch.broadcast_shapes(source.size(), target.size()).numel()
    spec = replace(spec, nbytes=max(spec.nbytes, whole * spec.dtype.itemsize))
    return Results(spec, (spec,))


def masked_fill(call: Call) -> Results:
    """Masks of bytes are taken, too, with a warning: the rule of torch knows bools alone."""
    target, mask, *value = call.args
    bools = torch.empty(mask.size(), dtype=torch.bool, device="meta")
    return infer(Call(call.func, (target, bools, *value), call.kwargs))


def _several(specs: list[Any], formats: list[torch.memory_format]) -> Results:
    """Dense tensors in these formats where there is a result."""
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


def cudnn_attention(call: Call) -> Results:
    """Without a gradient cuDNN is asked for no statistics.

    aten/src/ATen/native/cudnn/MHA.cpp: run_cudnn_SDP_fprop (return_softmaxstats)
    """
    results = infer(call)
    if call.argument("compute_log_sumexp"):
        return results
    result, statistics, *others = results.shape
    none = spec_of((0,), statistics.dtype, statistics.number)
    fresh = tuple(none if spec.number == none.number else spec for spec in results.fresh)
    return Results((result, none, *others), fresh)


def log_sigmoid(call: Call) -> Results:
    """The buffer beside the result is the CPU's; CUDA leaves it empty.

    aten/src/ATen/native/cuda/Activation.cpp: log_sigmoid_forward_cuda
    """
    results = infer(call)
    result, buffer = results.shape
    none = spec_of((0,), buffer.dtype, buffer.number)
    fresh = tuple(none if spec.number == none.number else spec for spec in results.fresh)
    return Results((result, none), fresh)


SHAPES: dict[Any, Callable[[Call], Results]] = {
    **MISSING,
    aten._softmax.default: softmax,
    aten._log_softmax.default: softmax,
    aten._softmax_backward_data.default: softmax_backward,
    aten._log_softmax_backward_data.default: softmax_backward,
    aten._scaled_dot_product_cudnn_attention.default: cudnn_attention,
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten.clone.default: clone,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    **{
        func: masked_fill
        for packet in (aten.masked_fill, aten.masked_fill_)
        for func in (packet.Scalar, packet.Tensor)
    },
    aten.mse_loss.default: loss,
    aten.smooth_l1_loss.default: loss,
    aten.soft_margin_loss.default: loss,
    aten.binary_cross_entropy.default: loss,
}
