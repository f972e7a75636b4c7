"""Quantization that is only simulated: dense tensors in, dense tensors out; no other kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from nbmem.virtual.operators.operator import Operator
from nbmem.virtual.tensors.shapes import no_such_tensors, one, several

if TYPE_CHECKING:
    from nbmem.virtual.operators.operator import Executor
    from nbmem.virtual.tensors.calls import OperatorCall
    from nbmem.virtual.tensors.shapes import Results


def fake_quantized(call: OperatorCall) -> Results:
    """The result, and where the value was within the range."""
    tensor = call.args[0]
    return several((tensor.size(), tensor.dtype), (tensor.size(), torch.bool))


def dequantized(call: OperatorCall) -> Results:
    """Float32 in the same shape."""
    return one(call.args[0].size(), torch.float32)


def quantized(executor: Executor, call: OperatorCall) -> NoReturn:
    """A tensor with a scale of its own, which the shape rule takes for a dense one."""
    del executor
    raise no_such_tensors(f"as {call.func} makes them")


OPERATORS = (
    Operator(
        (
            "fake_quantize_per_channel_affine_cachemask",
            "fake_quantize_per_tensor_affine_cachemask",
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        ),
        shape=fake_quantized,
    ),
    Operator(("dequantize.self",), shape=dequantized),
    Operator(
        (
            *("quantize_per_tensor", "quantize_per_tensor.tensor_qparams"),
            *("quantize_per_tensor_dynamic", "quantize_per_channel"),
        ),
        run=quantized,
    ),
)
