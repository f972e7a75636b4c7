"""Shapes that torch's own rules do not give as CUDA does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.shapes import Results, spec_of
from nbmem.virtual.values import dense

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.virtual.calls import Call

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


SHAPES: dict[Any, Callable[[Call], Results]] = {
    aten._softmax.default: softmax,
    aten._log_softmax.default: softmax,
    aten._softmax_backward_data.default: softmax_backward,
    aten._log_softmax_backward_data.default: softmax_backward,
    aten.clone.default: clone,
}
