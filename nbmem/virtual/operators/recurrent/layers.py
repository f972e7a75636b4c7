"""LSTM, GRU and RNN layers through cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from nbmem.virtual import current_machine
from nbmem.virtual.devices import CUDA
from nbmem.virtual.operators.recurrent import rnn_kernels

aten = torch.ops.aten
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def layer(mode: str, *, packed: bool) -> Callable[..., Any]:
    """Return the kernel of one overload.

    With `packed` it takes data and batch sizes, not a padded batch.
    """

    def padded_call(  # noqa: PLR0913 - the schema's
        source: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,  # noqa: FBT001
        num_layers: int,
        dropout: float,
        train: bool,  # noqa: FBT001
        bidirectional: bool,  # noqa: FBT001
        batch_first: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        return _run(
            mode, source, hx, params, has_biases, num_layers, dropout, train, bidirectional,
            batch_first, (),
        )  # fmt: skip

    def packed_call(  # noqa: PLR0913 - the schema's
        source: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,  # noqa: FBT001
        num_layers: int,
        dropout: float,
        train: bool,  # noqa: FBT001
        bidirectional: bool,  # noqa: FBT001
    ) -> Any:
        if batch_sizes.is_cuda:
            device = batch_sizes.device
            raise RuntimeError(f"batch_sizes tensor should be on CPU, but got {device}")
        sizes = batch_sizes.tolist()
        return _run(
            mode, source, hx, params, has_biases, num_layers, dropout, train, bidirectional,
            False, sizes,
        )  # fmt: skip

    return packed_call if packed else padded_call


def check(source: torch.Tensor, hidden: torch.Tensor, params: Sequence[torch.Tensor]) -> None:
    """Check that input, hidden state and weights are on one device.

    Raises:
        RuntimeError: Its input or its hidden state is elsewhere than its weights.
    """
    home = params[0].device
    for name, tensor in (("input", source), ("hidden", hidden)):
        if tensor.device != home:
            other = "parameter" if name == "input" else "input"
            raise RuntimeError(
                f"Input and {'parameter' if name == 'input' else name} tensors are not at the same "
                f"device, found {name} tensor at {tensor.device} and {other} tensor at {home}"
            )


def _run(  # noqa: PLR0913 - the schema's
    mode: str,
    source: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,  # noqa: FBT001
    num_layers: int,
    dropout: float,
    train: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
    batch_first: bool,  # noqa: FBT001
    batch_sizes: Sequence[int],
) -> Any:
    first, cell = (hx[0], hx[1]) if mode == "lstm" else (hx, None)
    check(source, first, params)
    hidden = (cell if cell is not None else first).size(2)
    projected = first.size(2) if cell is not None and first.size(2) != hidden else 0
    stride = (4 if has_biases else 2) + (1 if projected else 0)
    absent = 0
    if not (has_biases or projected):
        absent = rnn_kernels.bias_elements(
            MODES[mode], hidden, num_layers, bidirectional=bidirectional
        )
    buffer = _flat_buffer(params, absent)
    state = _dropout_state(source) if dropout and train else None
    result = aten._cudnn_rnn.default(
        source, list(params), stride, buffer, first, cell, MODES[mode], hidden, projected,
        num_layers, batch_first, dropout, train, bidirectional, list(batch_sizes), state,
    )  # fmt: skip
    return result[:3] if mode == "lstm" else result[:2]


def _flat_buffer(params: Sequence[torch.Tensor], absent: int) -> torch.Tensor | None:
    """Return the buffer of flatten_parameters(); None for separate weights.

    Args:
        params: The weights.
        absent: Elements of it that belong to biases which the layer does not have.
    """
    storage = params[0].untyped_storage()
    if any(p.untyped_storage()._cdata != storage._cdata for p in params[1:]):
        return None
    total = sum(p.numel() for p in params) + absent
    if total * params[0].element_size() != storage.nbytes():
        return None
    with torch.no_grad():
        return params[0].detach().as_strided((total,), (1,), 0)


def _dropout_state(source: torch.Tensor) -> torch.Tensor | None:
    """Return the card's dropout state, made anew after a new seed.

    The state's own seed is drawn on the card.

    aten/src/ATen/native/cudnn/RNN.cpp: get_dropout_state
    """
    machine = current_machine.machine()
    if machine is None:
        return None
    gpu = machine.of(source)
    anew = torch.cuda.default_generators[gpu.index].takes_new_dropout()
    if gpu.dropout_state is None or anew:
        torch.empty((), dtype=torch.int64, device=CUDA[gpu.index]).random_()
        gpu.dropout_state = aten._cudnn_init_dropout_state.default(
            0.5, True, 0, dtype=torch.uint8, device=CUDA[gpu.index]
        )
    return gpu.dropout_state


def autocast_cells(operator: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """Run `_cudnn_rnn` under autocast, with weights cast to the lower type.

    They go into a flat buffer of that type.
    """
    source, weights, stride, _, hx, cx, *rest = args
    lower = [weight.to(dtype) for weight in weights]
    states = [state.to(dtype) if state is not None else None for state in (hx, cx)]
    return operator(source.to(dtype), lower, stride, None, *states, *rest, **kwargs)
