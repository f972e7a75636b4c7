"""Kernels on quantized tensors.

Most work on the integers, and their results have the same quantizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.operators.quantized.constructors import check_zero_points, to_copy, to_cpu
from nbmem.virtual.tensors.quantized import (
    INTEGERS,
    Affine,
    QuantizedTensor,
    attach_quantizer,
    integers_of,
    is_quantized,
    place,
    quantized,
    quantizer_of,
)
from nbmem.virtual.tensors.shapes import as_meta

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Handler
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten
_NUMBERS = {
    torch.per_tensor_affine: 0, torch.per_channel_affine: 1,
    torch.per_channel_affine_float_qparams: 4,
}  # fmt: skip
"""Numbers that C++ takes from Python (c10/core/QScheme.h)."""
_POOLED = "TensorDescriptor does not support {}"


def view(call: OperatorCall) -> Any:
    """Return the same memory in another shape.

    C++'s own kernels would search for a quantizer.
    """
    tensor = call.tensors[0]
    with _C._DisableTorchDispatch():
        args, kwargs = call.map(lambda t: as_meta(integers_of(t)))
        shaped = call.func(*args, **kwargs)
    if isinstance(shaped, (list, tuple)):
        return [_shaped_like(tensor, one) for one in shaped]
    if call.func._schema.name.endswith("_"):
        return place(tensor, tensor, shaped.storage_offset(), shaped.size(), shaped.stride())
    return _shaped_like(tensor, shaped)


def _shaped_like(tensor: torch.Tensor, shaped: torch.Tensor) -> torch.Tensor:
    integers = integers_of(tensor)
    place(integers, tensor, shaped.storage_offset(), shaped.size(), shaped.stride())
    return quantized(integers, tensor.dtype, quantizer_of(tensor))


def quantizer_attribute(read: Callable[[Any], Any]) -> Handler:
    """Return a handler that reads an attribute of a quantizer."""

    def answered(executor: Executor, call: OperatorCall) -> Any:
        quantizer = quantizer_of(call.args[0])
        try:
            return read(quantizer)
        except AttributeError:
            name = call.func._schema.name.removeprefix("aten::")
            raise RuntimeError(f"{name} is not there for {quantizer.scheme}") from None

    return answered


def on_integers(executor: Executor, call: OperatorCall) -> Any:
    """Run an operator that moves or overwrites elements on the integers."""
    first = call.tensors[0]
    call_on = call.map(lambda t: integers_of(t) if is_quantized(t) else t)
    made = call.func(*call_on[0], **call_on[1])
    if call.func._schema.name.endswith("_"):
        return first
    return _with_quantizer_of(made, first)


def _with_quantizer_of(made: Any, like: torch.Tensor) -> Any:
    if isinstance(made, tuple):
        values, *rest = made
        return (_with_quantizer_of(values, like), *rest)
    return quantized(made, like.dtype, quantizer_of(like))


def on_floats(floats: Any) -> Handler:
    """Return a handler that dequantizes, runs `floats`, and quantizes again."""

    def run(executor: Executor, call: OperatorCall) -> Any:
        source = call.args[0]
        given = source.dequantize()
        made = floats(given, *call.args[1:], **call.kwargs)
        return _with_quantizer_of(torch.empty_like(made, dtype=INTEGERS[source.dtype]), source)

    return run


def _requantized(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return _with_quantizer_of(torch.empty(made.size(), dtype=made.dtype, device=made.device), like)


def relu(executor: Executor, call: OperatorCall) -> Any:
    """Run relu_quantized_cuda.

    aten/src/ATen/native/quantized/cuda/Activation.cpp
    """
    source = call.args[0]
    integers = int_repr(executor, call)
    mask = integers > 0
    zero = torch.empty((), dtype=integers.dtype, device=integers.device)
    chosen = torch.where(mask, integers, zero)
    del zero
    return _requantized(chosen, source)


def extreme(name: str) -> Handler:
    """Return a handler of `max(dim)` or `min(dim)` on the integers."""

    def run(executor: Executor, call: OperatorCall) -> Any:
        if call.func._overloadname != "dim":
            raise not_implemented(call)
        found, places = getattr(torch, name)(int_repr(executor, call), *call.args[1:])
        return _requantized(found, call.args[0]), places

    return run


def max_pool(executor: Executor, call: OperatorCall) -> Any:
    """Run cuDNN's max pooling, which takes signed bytes only."""
    source = call.args[0]
    if source.dtype is not torch.qint8:
        raise RuntimeError(_POOLED.format("QUInt8" if source.dtype is torch.quint8 else "QInt32"))
    given = integers_of(source).contiguous(memory_format=torch.channels_last)
    with _C._DisableTorchDispatch():
        shaped = torch.max_pool2d(as_meta(given).float(), *call.args[1:])
    made = torch.empty_strided(
        shaped.size(), shaped.stride(), dtype=torch.int8, device=source.device
    )
    return _with_quantizer_of(made, source)


def fill_(executor: Executor, call: OperatorCall) -> Any:
    """Run `fill_`: a temporary tensor of floats is quantized."""
    target = call.args[0]
    torch.empty(target.size(), device=target.device)
    return target


def not_implemented(call: OperatorCall) -> NotImplementedError:
    """Return torch's error for an operator without a quantized CUDA kernel."""
    return NotImplementedError(
        f"Could not run '{call.func._schema.name}' with arguments from the 'QuantizedCUDA' backend."
    )


def empty_like(executor: Executor, call: OperatorCall) -> Any:
    """Return a tensor of the same shape and with the same quantizer."""
    source = call.args[0]
    layout = call.kwargs.get("memory_format") or torch.preserve_format
    return _with_quantizer_of(torch.empty_like(integers_of(source), memory_format=layout), source)


def int_repr(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Return a copy of the integers."""
    return torch.clone(integers_of(call.args[0]))


def dequantized(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Return a float32 tensor of the same shape."""
    source = call.args[0]
    if call.func._overloadname != "self":
        raise not_implemented(call)
    made = torch.empty_like(integers_of(source), dtype=torch.float32)
    if not isinstance(quantizer_of(source), Affine):
        check_zero_points(source)
    return made


def copy_(executor: Executor, call: OperatorCall) -> Any:
    """Run `copy_`: floats are quantized by the target's scale."""
    target, source = call.args[:2]
    if not is_quantized(target):
        if target.is_quantized:
            return aten.copy_.default(target, to_cpu(executor, call, source))
        raise RuntimeError(
            "Copying from quantized Tensor to non-quantized Tensor is not allowed, please use "
            "dequantize to get a float Tensor from a quantized Tensor"
        )
    if source.is_quantized and source.dtype is not target.dtype:
        raise RuntimeError("Quantized Copy only works with same dtypes")
    executor.values.forget(integers_of(target))
    return target


def set_(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Move a tensor to another storage, as loading from a file does."""
    tensor, source, *rest = call.args
    quantizer = quantizer_of(tensor)
    if rest:
        offset, size, *stride = rest
        strides = stride[0] if stride and stride[0] else torch.empty(size, device="meta").stride()
    elif isinstance(source, QuantizedTensor):
        offset, size, strides = source.storage_offset(), source.size(), source.stride()
    else:
        offset, size, strides = 0, (source.nbytes() // tensor.element_size(),), (1,)
    place(tensor, source, offset, size, strides)
    attach_quantizer(tensor, quantizer)
    return tensor


def handlers() -> Iterator[tuple[str, Handler]]:
    """Yield handlers by the operator's name."""
    yield "q_scale", quantizer_attribute(lambda quantizer: quantizer.scale)
    yield "q_zero_point", quantizer_attribute(lambda quantizer: quantizer.zero_point)
    yield "qscheme", quantizer_attribute(lambda quantizer: _NUMBERS[quantizer.scheme])
    yield "q_per_channel_scales", quantizer_attribute(lambda quantizer: quantizer.scales)
    yield "q_per_channel_zero_points", quantizer_attribute(lambda quantizer: quantizer.zero_points)
    yield "q_per_channel_axis", quantizer_attribute(lambda quantizer: quantizer.axis)
    for name in (*("clone", "index_select", "flip", "relu_", "masked_fill_", "_index_put_impl_"),):
        yield name, on_integers
    for name in ("max", "min"):
        yield name, extreme(name)
    yield "relu", relu
    yield "fill_", fill_
    yield "gelu", on_floats(aten.gelu.default)
    yield "_adaptive_avg_pool2d", on_floats(aten._adaptive_avg_pool2d.default)
    yield "quantized_max_pool2d", max_pool
    yield "empty_like", empty_like
    yield "int_repr", int_repr
    yield "dequantize", dequantized
    yield "copy_", copy_
    yield "set_", set_
    yield "_to_copy", to_copy
