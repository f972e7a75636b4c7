"""LSTM and GRU cells: two matrix products, then one kernel for all gates.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cuda/RNN.cu and
aten/src/ATen/native/RNN.cpp (LSTMCell, GRUCell: `input.is_cuda()`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Executor, Launch, Step, out
from nbmem.virtual.tensors.shapes import Results, several, spec_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten
GRU_KEEPS = 5
"""Numbers for each hidden element that a GRU's backward reads (GRU_WORKSPACE_MULTIPLIER)."""
GRU_GATES = 3


def lstm_cell(  # noqa: PLR0913 - the schema's
    source: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new hidden state and the new cell state."""
    gates = torch.matmul(source, w_ih.t()), torch.matmul(hx[0], w_hh.t())
    return tuple(aten._thnn_fused_lstm_cell.default(*gates, hx[1], b_ih, b_hh)[:2])


def gru_cell(  # noqa: PLR0913 - the schema's
    source: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the new hidden state."""
    gates = torch.matmul(source, w_ih.t()), torch.matmul(hx, w_hh.t())
    hidden: torch.Tensor = aten._thnn_fused_gru_cell.default(*gates, hx, b_ih, b_hh)[0]
    return hidden


def shape_lstm(call: OperatorCall) -> Results:
    """Return hidden state, cell state, and the gates for backward."""
    gates, cell = call.argument("input_gates"), call.argument("cx")
    return several(*((t.size(), t.dtype) for t in (cell, cell, gates)))


def shape_gru(call: OperatorCall) -> Results:
    """Return hidden state, and the workspace that backward reads."""
    rows, width = call.argument("hx").size()
    dtype = call.argument("hx").dtype
    return several(((rows, width), dtype), ((rows, GRU_KEEPS * width), dtype))


def workspace_first(launch: Launch) -> Iterator[Step]:
    """Plan the workspace for backward before the states."""
    last = len(launch.outs) - 1
    yield out(last)
    for number in range(last):
        yield out(number)


def lstm_backward(executor: Executor, call: OperatorCall) -> Any:
    """Run the backward of an LSTM cell: gradients of gates, cell and biases.

    The gradient of the biases is the gates' sum.
    """
    kept, cell = call.argument("workspace"), call.argument("cx")
    specs = tuple(spec_of(tuple(t.size()), t.dtype, at) for at, t in enumerate((kept, cell)))
    gates, cell = executor.allocate(call.gpu, specs)
    bias = None
    if call.argument("has_bias"):
        with executor:
            bias = aten.sum.dim_IntList(gates, [0])
    return gates, cell, bias


def gru_backward(executor: Executor, call: OperatorCall) -> Any:
    """Run the backward of a GRU cell.

    There are gradients of both products, of the hidden state, and of both biases.
    """
    gradient = call.argument("grad_hy")
    rows, width = gradient.size()
    sizes = ((rows, GRU_GATES * width), (rows, GRU_GATES * width), (rows, width))
    specs = tuple(spec_of(size, gradient.dtype, at) for at, size in enumerate(sizes))
    made = executor.allocate(call.gpu, specs)
    biases: list[Any] = [None, None]
    if call.argument("has_bias"):
        with executor:
            biases = [aten.sum.dim_IntList(gates, [0]) for gates in made[:2]]
    return *made, *biases
