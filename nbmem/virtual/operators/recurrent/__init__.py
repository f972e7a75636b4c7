"""LSTM, GRU and RNN operators."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.operator_model.value_checks import aten_type_name
from nbmem.virtual.operators.recurrent import cells, rnn_kernels
from nbmem.virtual.operators.recurrent.layers import MODES, layer
from nbmem.virtual.tensors.shapes import spec_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


def pack(executor: Executor, call: OperatorCall) -> Any:
    """Pack padded sequences of known lengths.

    The batch sizes stay on the CPU.
    """
    source, lengths, batch_first = call.args
    _check_lengths(lengths, source.size(0 if batch_first else 1))
    with _C._DisableTorchDispatch():
        steps = torch.arange(int(lengths.max()))
        sizes = (lengths[:, None] > steps).sum(0)
    rest = tuple(source.size()[2:])
    packed = executor.allocate(call.gpu, (spec_of((int(lengths.sum()), *rest), source.dtype, 0),))[
        0
    ]
    return packed, sizes


def _check_lengths(lengths: torch.Tensor, rows: int) -> None:
    """Refuse lengths that _pack_padded_sequence refuses.

    PackedSequence.cpp
    """
    if is_virtual(lengths) or lengths.dim() != 1 or lengths.dtype is not torch.int64:
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {lengths.device} {aten_type_name(lengths)} tensor"
        )
    with _C._DisableTorchDispatch():
        known = lengths.tolist()
    if len(known) != rows:
        raise RuntimeError(
            "Expected `len(lengths)` to be equal to batch_size, but got "
            f"{len(known)} (batch_size={rows})"
        )
    if known[-1] <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    if any(later > before for before, later in pairwise(known)):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )


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
        memory=cells.workspace_first,
        source=_CELLS + "_thnn_fused_lstm_cell_cuda",
    ),
    Operator(
        ("_thnn_fused_gru_cell",),
        shape=cells.shape_gru,
        memory=cells.workspace_first,
        source=_CELLS + "_thnn_fused_gru_cell_cuda",
    ),
    Operator(("_thnn_fused_lstm_cell_backward_impl",), run=cells.lstm_backward),
    Operator(("_thnn_fused_gru_cell_backward",), run=cells.gru_backward),
    Operator(("_cudnn_rnn_flatten_weight",), run=rnn_kernels.flatten_weight),
    Operator(("_cudnn_rnn",), run=rnn_kernels.forward),
    Operator(("_cudnn_rnn_backward",), run=rnn_kernels.backward),
    Operator(("_cudnn_init_dropout_state",), run=rnn_kernels.dropout_state),
    Operator(("_pack_padded_sequence",), run=pack),
)
