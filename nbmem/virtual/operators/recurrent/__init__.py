"""LSTM, GRU and RNN through cuDNN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.operators.operator import BY_ORACLE, Operator
from nbmem.virtual.operators.recurrent import cells, kernels
from nbmem.virtual.operators.recurrent.layers import MODES, layer
from nbmem.virtual.tensors.shapes import spec_of

if TYPE_CHECKING:
    from nbmem.virtual.operators.operator import Executor
    from nbmem.virtual.tensors.calls import OperatorCall


def pack(executor: Executor, call: OperatorCall) -> Any:
    """Sequences of known lengths, one after the other; the batch sizes stay on the CPU."""
    source, lengths = call.args[:2]
    with _C._DisableTorchDispatch():
        steps = torch.arange(int(lengths.max()))
        sizes = (lengths[:, None] > steps).sum(0)
    rest = tuple(source.size()[2:])
    packed = executor.allocate(call.gpu, (spec_of((int(lengths.sum()), *rest), source.dtype, 0),))[
        0
    ]
    return packed, sizes


_CELLS = "aten/src/ATen/native/cuda/RNN.cu: "
OPERATORS = (
    *(
        Operator((f"{mode}.{kind}",), composite=layer(mode, packed=kind == "data"))
        for mode in MODES
        for kind in ("input", "data")
    ),
    Operator(("lstm_cell",), composite=cells.lstm_cell),
    Operator(("gru_cell",), composite=cells.gru_cell),
    Operator(
        ("_thnn_fused_lstm_cell",),
        shape=cells.shape_lstm,
        memory=cells.kept_first,
        source=_CELLS + "_thnn_fused_lstm_cell_cuda",
        shown_by=BY_ORACLE,
    ),
    Operator(
        ("_thnn_fused_gru_cell",),
        shape=cells.shape_gru,
        memory=cells.kept_first,
        source=_CELLS + "_thnn_fused_gru_cell_cuda",
        shown_by=BY_ORACLE,
    ),
    Operator(("_thnn_fused_lstm_cell_backward_impl",), run=cells.lstm_backward),
    Operator(("_thnn_fused_gru_cell_backward",), run=cells.gru_backward),
    Operator(("_cudnn_rnn_flatten_weight",), run=kernels.flatten_weight),
    Operator(("_cudnn_rnn",), run=kernels.forward),
    Operator(("_cudnn_rnn_backward",), run=kernels.backward),
    Operator(("_cudnn_init_dropout_state",), run=kernels.dropout_state),
    Operator(("_pack_padded_sequence",), run=pack),
)
