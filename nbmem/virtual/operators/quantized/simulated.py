"""Simulated quantization, from dense tensors to dense tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operator_model.operator import Operator
from nbmem.virtual.tensors.shapes import Results, several

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


def fake_quantized(call: OperatorCall) -> Results:
    """Return the result and a mask of the values within the range."""
    tensor = call.args[0]
    return several((tensor.size(), tensor.dtype), (tensor.size(), torch.bool))


OPERATORS = (
    Operator(
        (
            "fake_quantize_per_channel_affine_cachemask",
            "fake_quantize_per_tensor_affine_cachemask",
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        ),
        shape=fake_quantized,
    ),
)
