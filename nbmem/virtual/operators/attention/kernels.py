"""Fused attention: what its kernels save and what they need on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operators.operator import DNN, HALVES, drop, host, out, temporary
from nbmem.virtual.tensors.calls import OperatorCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step

CUDNN_WORKSPACE = 256
"""Bytes of a plan's own, whatever the shape: recorded (gpt2, llama160m, timm_vit with bfloat16).

cuDNN 9.19 says the same for a described H100: with masks, dropout, grouped queries and
heads of 32 to 256.
"""

HALF_TILE_BYTES = {torch.float16: (154_112, 162_304), torch.bfloat16: (133_632, 152_064)}
"""Shared memory of the backward kernel with 128 x 128 tiles, without dropout and with it."""
FLOAT_TILE_BYTES, WIDE_TILE_BYTES = 121_344, 60_928
"""Shared memory with 128 x 64 tiles: for float32, and for half types with heads of more than 128.

sizeof(SharedStorage), as the launches in torch 2.11's library ask for it.
"""


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def efficient(launch: Launch) -> Iterator[Step]:
    """Seed and offset, which a graph has on the card, then result and log-sum-exp.

    Half types add up wide heads in float32, beside the result.
    """
    query, value = launch["query"], launch["value"]
    yield host(2)
    yield host(3)
    yield out(0)
    yield out(1)
    if query.dtype in HALVES and max(query.size(-1), value.size(-1)) > 128:
        yield temporary("accumulator", launch.outs[0].nbytes * 2)


def efficient_backward(launch: Launch) -> Iterator[Step]:
    """Gradients; the row sums of gradient times result; accumulators.

    The kernels of half types make the sums themselves, for float32 three plain ones do: the last
    brings the heads before the rows, where there are several of both.
    """
    query, gradient = launch["query"], launch["grad_out_"]
    batch, heads, rows, size = query.size()
    if not gradient.transpose(1, 2).is_contiguous():
        yield temporary("grad_out", gradient.numel() * gradient.element_size())
    for number in range(len(launch.outs)):
        yield out(number)
    if query.dtype in HALVES:
        yield temporary("delta", batch * heads * rows * 4)
    else:
        yield temporary("product", batch * heads * rows * size * 4)
        if min(heads, rows) > 1:
            yield temporary("sums", batch * heads * rows * 4)
        yield temporary("delta", batch * heads * rows * 4)
        yield drop("sums")
        yield drop("product")
    yield temporary("workspace", batch * heads * efficient_workspace(launch))
    yield drop("delta")


def efficient_backward_by_rows(launch: Launch) -> Iterator[Step]:
    """Of the kernel itself, whose tensors have the rows before the heads."""
    gradient, query, key, value, *rest = launch.call.args
    turned = [tensor.transpose(1, 2) for tensor in (gradient, query, key, value)]
    call = OperatorCall(launch.call.func, (*turned, *rest), launch.call.kwargs)
    yield from efficient_backward(replace(launch, call=call))


def efficient_workspace(launch: Launch) -> int:
    """Bytes for each head: float32 tiles of the query's gradient, with a lock and a counter each.

    Where a tile has fewer rows than a head has elements, half types also keep those of the
    gradients of keys and values. mem_eff_attention/kernel_backward.h: workspace_strideBH
    """
    query, key, value = launch["query"], launch["key"], launch["value"]
    size, size_value = query.size(-1), value.size(-1)
    most = max(size, size_value)
    tall, wide = _tile(launch, most)
    elements = -(-query.size(2) // tall) * -(-size // wide) * (tall * wide + 4)
    in_registers = most <= (64 if tall == 64 else 128)
    if query.dtype in HALVES and not in_registers:
        splits = 1 if torch.are_deterministic_algorithms_enabled() else -(-key.size(2) // wide)
        elements += splits * wide * (_up(size, tall) + _up(size_value, tall))
    return _up(elements, 4) * 4


def _tile(launch: Launch, size: int) -> tuple[int, int]:
    """Rows and columns of the first of kernels/cutlassB.h's kernels that takes such heads."""
    card, dtype = launch.card, launch["query"].dtype
    room, half = card.multiprocessor.shared_bytes, dtype in HALVES
    if size <= 64 or (card.capability < (8, 0) and not half):
        return 64, 64
    if card.capability < (8, 0):
        return 128, 64
    if half and size <= 128:
        dropout = bool(launch["dropout_p"])
        if size <= 96 and not dropout and card.capability in ((8, 6), (8, 9)):
            return 128, 64
        return (128, 128) if room >= HALF_TILE_BYTES[dtype][dropout] else (64, 64)
    return (128, 64) if room >= (WIDE_TILE_BYTES if half else FLOAT_TILE_BYTES) else (64, 64)


def cudnn(launch: Launch) -> Iterator[Step]:
    """The seed of the dropout first, on the card; then result, statistics and a small workspace."""
    numbers = dict(enumerate(launch.outs))
    small = [n for n, spec in numbers.items() if spec.dtype is torch.int64 and not spec.size]
    for number in small:
        yield out(number)
    for number in numbers:
        if number not in small:
            yield out(number)
    yield DNN
    yield temporary("workspace", CUDNN_WORKSPACE)


def cudnn_backward(launch: Launch) -> Iterator[Step]:
    """A float32 accumulator of the query's gradient, and row sums.

    With grouped queries also the gradients of keys and values for every head before they are
    added up. A gradient that is expanded from a number is copied first.
    """
    query, key, gradient = launch["query"], launch["key"], launch["grad_out"]
    batch, heads, rows, size = query.size()
    if gradient.stride(-1) != 1:
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    for number in range(len(launch.outs)):
        yield out(number)
    yield DNN
    workspace = batch * heads * rows * (size * 4 + 4) + CUDNN_WORKSPACE
    if key.size(1) != heads:
        workspace += 2 * batch * heads * key.size(2) * size * query.element_size()
    yield temporary("workspace", workspace)


def safe_softmax(launch: Launch) -> Iterator[Step]:
    """Softmax, then rows without any score are looked for and set to zero in place."""
    tensor = launch["self"]
    yield out()
    yield temporary("is -inf", tensor.numel())
    along = tensor.size(launch["dim"]) if tensor.dim() else 1
    yield temporary("whole rows", tensor.numel() // max(1, along))
    yield temporary("zero", tensor.element_size())
