"""Allocations of cuDNN's recurrent layers, and their weight buffer.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cudnn/RNN.cpp
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import DNN, MemoryPlan, Step, drop, out, temporary
from nbmem.virtual.operators.recurrent.sizes import GATES, RecurrentShape
from nbmem.virtual.tensors.shapes import (
    ArgumentResult,
    Results,
    Shares,
    TensorSpec,
    as_meta,
    spec_of,
)
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten

WITHOUT_BIASES = 2
"""Weights of a layer without biases, and without a projection."""


def bias_elements(mode: int, hidden: int, layers: int, *, bidirectional: bool) -> int:
    """Return the elements that cuDNN's buffer has for biases (DOUBLE_BIAS).

    It has them also where a layer has no biases.
    """
    return 2 * GATES[mode] * hidden * layers * (1 + bidirectional)


def _absent_biases(call: OperatorCall) -> int:
    if call.argument("weight_stride0") != WITHOUT_BIASES:
        return 0
    of_layer = (call.argument(name) for name in ("mode", "hidden_size", "num_layers"))
    return bias_elements(*of_layer, bidirectional=call.argument("bidirectional"))


def _buffer(call: OperatorCall, weights: Sequence[torch.Tensor]) -> int:
    """Return the elements of cuDNN's buffer of all weights."""
    return sum(weight.numel() for weight in weights) + _absent_biases(call)


def flatten_weight(executor: Executor, call: OperatorCall) -> Any:
    """Move the weights of all layers into one buffer."""
    weights: Sequence[torch.Tensor] = call.args[0]
    total = _buffer(call, weights)
    dtype = weights[0].dtype
    buffer = executor.allocate(call.gpu, (spec_of((total,), dtype, 0),))[0]
    at = 0
    with DataKernels():
        for weight in weights:
            stride = torch.empty(weight.size(), device="meta").stride()
            weight.set_(buffer.untyped_storage(), at, weight.size(), stride)
            at += weight.numel()
    return buffer


def forward(executor: Executor, call: OperatorCall) -> Any:
    """Run `_cudnn_rnn`: result, states, and in training the reserve.

    Backward reads the reserve.
    """
    shape = RecurrentShape.of(call)
    source, hx, cx = call.args[0], call.argument("hx"), call.argument("cx")
    first = call.argument("batch_first") and not call.argument("batch_sizes")
    dtype = source.dtype
    wide = shape.width * shape.directions
    states = shape.layers * shape.directions
    buffer = call.argument("weight_buf")
    fresh = [
        _sequence(source, wide, dtype, 0, first=bool(first)),
        spec_of((states, shape.rows, shape.width), hx.dtype, 1),
        spec_of((states, shape.rows, shape.hidden) if cx is not None else (0,), hx.dtype, 2),
        spec_of((shape.reserve if call.argument("train") else 0,), torch.uint8, 3),
    ]
    steps: list[Step] = [*_input_copy(source, first=bool(first)), out(0), out(1), out(2), DNN]
    if buffer is None:
        fresh.append(spec_of((_buffer(call, call.args[1]),), dtype, 4))
        steps.append(out(4))
    training = bool(call.argument("train"))
    workspace = shape.workspace(shape.algorithm(call.gpu.card), training=training)
    steps += [temporary("workspace", workspace), out(3)]
    last: Any = fresh[4] if buffer is None else ArgumentResult(_place(call, buffer))
    results = Results((*fresh[:4], last), tuple(fresh))
    return executor.deliver(call, results, MemoryPlan(tuple(steps)))


def backward(executor: Executor, call: OperatorCall) -> Any:
    """Run the backward: input and states, then weights in one buffer.

    Those are the gradients, in their order.
    """
    shape = RecurrentShape.of(call)
    workspace = shape.workspace(shape.algorithm(call.gpu.card, forward=False))
    source, hx, cx = call.args[0], call.argument("hx"), call.argument("cx")
    weights: Sequence[torch.Tensor] = call.args[1]
    first = bool(call.argument("batch_first") and not call.argument("batch_sizes"))
    mask = call.argument("output_mask")
    fresh = [
        _sequence(source, source.size(-1), source.dtype, 0, first=first),
        spec_of(tuple(hx.size()), hx.dtype, 1),
        spec_of(tuple(cx.size()) if cx is not None else (0,), hx.dtype, 2),
        spec_of((_buffer(call, weights),), source.dtype, 3),
    ]
    steps: list[Step] = []
    for name, state in (("grad_hy", hx), ("grad_cy", cx)):
        if state is not None and call.argument(name) is None:
            steps.append(temporary(name, state.numel() * state.element_size()))
    steps += _input_copy(source, first=first)
    gradient = call.argument("grad_output")
    if gradient is not None:
        by_steps = as_meta(gradient)
        steps += _contiguous("gradient", by_steps.transpose(0, 1) if first else by_steps)
    steps += [out(0), out(1), out(2)]
    states = [("of hy", call.argument("grad_hy")), ("of cy", call.argument("grad_cy"))]
    for name, state in states:
        steps += [] if state is None else _contiguous(name, as_meta(state))
    steps += [DNN, temporary("workspace", workspace), drop("workspace")]
    steps += [drop(name) for name in ("of cy", "of hy", "gradient", "input")]
    shape_of: list[Any] = [fresh[0], fresh[1], fresh[2], []]
    if mask[3]:
        steps += [*_input_copy(source, first=first), out(3)]
        steps.append(temporary("workspace", workspace))
        shape_of[3] = list(_pieces(weights, fresh[3]))
        if _absent_biases(call):  # They are copied out, and the buffer is a temporary.
            steps[steps.index(out(3))] = temporary("buffer", fresh[3].nbytes)
            shape_of[3] = [spec_of(tuple(w.size()), w.dtype, n) for n, w in enumerate(weights, 3)]
            fresh[3:] = shape_of[3]
            steps += [out(number) for number in range(3, len(fresh))]
            steps += [drop("workspace"), drop("buffer")]
    else:
        fresh.pop()
    return executor.deliver(call, Results(tuple(shape_of), tuple(fresh)), MemoryPlan(tuple(steps)))


def _pieces(weights: Sequence[torch.Tensor], buffer: TensorSpec) -> list[Shares]:
    found: list[Shares] = []
    at = 0
    for weight in weights:
        stride = torch.empty(weight.size(), device="meta").stride()
        spec = TensorSpec(tuple(weight.size()), stride, at, buffer.dtype, buffer.nbytes, -1)
        found.append(Shares(spec, buffer.number, None))
        at += weight.numel()
    return found


def _place(call: OperatorCall, wanted: torch.Tensor) -> int:
    return next(at for at, tensor in enumerate(call.tensors) if tensor is wanted)


def _contiguous(name: str, tensor: torch.Tensor) -> list[Step]:
    """Return the step that copies a tensor that is not contiguous."""
    if tensor.is_contiguous():
        return []
    return [temporary(name, tensor.numel() * tensor.element_size())]


def _input_copy(source: torch.Tensor, *, first: bool) -> list[Step]:
    by_steps = as_meta(source)
    return _contiguous("input", by_steps.transpose(0, 1) if first else by_steps)


def _sequence(
    source: torch.Tensor, width: int, dtype: torch.dtype, number: int, *, first: bool
) -> TensorSpec:
    """Return the spec of a sequence result.

    With the batch first it is a transposed view.
    """
    size = (*source.size()[:-1], width)
    if not first:
        return spec_of(size, dtype, number)
    rows, steps = size[0], size[1]
    return (
        spec_of(size, dtype, number, (width, rows * width, 1))
        if steps and rows
        else spec_of(size, dtype, number)
    )


def dropout_state(executor: Executor, call: OperatorCall) -> Any:
    """Allocate a generator of 24 bytes per thread of the card.

    Observed in the recording lstm_lm_b32s128_sgd.
    """
    card = call.gpu.card
    size = card.processors * card.multiprocessor.threads * 24
    return executor.allocate(call.gpu, (spec_of((size,), torch.uint8, 0),))[0]
