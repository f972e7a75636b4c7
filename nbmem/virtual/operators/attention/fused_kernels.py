"""Fused attention: what its kernels save, and temporaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nbmem.core.units import round_up
from nbmem.virtual.operator_model.operator import DNN, HALVES, drop, host, out, temporary
from nbmem.virtual.tensors.operator_call import OperatorCall

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step

CUDNN_WORKSPACE = 256
"""Bytes of a plan's own, whatever the shape: recorded (gpt2, llama160m, timm_vit with bfloat16).

cuDNN 9.19 reports the same bytes for a described H100: with masks, dropout, grouped queries and
heads of 32 to 256.
"""

SPLIT_ON = ((8, 0), (9, 0))
"""Capabilities with a kernel for one query, as for a generated token, whose split of the keys is
known. cuDNN 9.20 reports it for 559 shapes on a described H100 and A100 each (tests/oracle)."""

BLACKWELL, BLACKWELL_TILE, BLACKWELL_WORKSPACE = (10, 0), 128, 128
"""From which capability on, how many rows and keys of a tile, and bytes of a plan that has any:
as cuDNN 9.20 reports for a described B200 (tests/oracle)."""

HALF_TILE_BYTES = {torch.float16: (154_112, 162_304), torch.bfloat16: (133_632, 152_064)}
"""Shared memory of the backward kernel with 128 x 128 tiles, without dropout and with it."""
FLOAT_TILE_BYTES, WIDE_TILE_BYTES = 121_344, 60_928
"""Shared memory with 128 x 64 tiles: for float32, and for half types with heads of more than 128.

sizeof(SharedStorage), as the launches in torch 2.11's library request it.
"""


def efficient(launch: Launch) -> Iterator[Step]:
    """Yield seed and offset, then the result and the log-sum-exp.

    Seed and offset are on the CPU; those of a CUDA graph are on the card. Since torch 2.14 they
    are on the card without a dropout, too. Half types add up wide heads in float32, beside the
    result.
    """
    query, value = launch["query"], launch["value"]
    place = host if launch["dropout_p"] or not launch.rules.idle_seeds_on_card else out
    yield from (place(2), place(3))
    yield out(0)
    yield out(1)
    if query.dtype in HALVES and max(query.size(-1), value.size(-1)) > 128:
        yield temporary("accumulator", launch.outs[0].nbytes * 2)


def efficient_backward(launch: Launch) -> Iterator[Step]:
    """Yield gradients, the row sums of gradient times result, accumulators.

    The kernels of half types make the sums themselves; for float32 three plain ones do. The
    last of them brings the heads before the rows, if there are several of both. With grouped
    queries the gradients of keys and values are written for every head, and added up behind.
    """
    query, gradient = launch["query"], launch["grad_out_"]
    batch, heads, rows, size = query.size()
    if not gradient.transpose(1, 2).is_contiguous():
        yield temporary("grad_out", gradient.numel() * gradient.element_size())
    for number in range(len(launch.outs)):
        yield out(number)
    for name in ("key", "value"):
        if (of := launch[name]).size(1) != heads:
            size_of_all = batch * heads * of.size(2) * of.size(3) * of.element_size()
            yield temporary(f"gradient of each {name}", size_of_all)
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
    for name in ("delta", "workspace", "gradient of each key", "gradient of each value"):
        yield drop(name)


def efficient_backward_by_rows(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `_efficient_attention_backward`.

    Its tensors have the rows before the heads.
    """
    gradient, query, key, value, *rest = launch.call.args
    turned = [tensor.transpose(1, 2) for tensor in (gradient, query, key, value)]
    call = OperatorCall(launch.call.func, (*turned, *rest), launch.call.kwargs)
    yield from efficient_backward(replace(launch, call=call))


def efficient_workspace(launch: Launch) -> int:
    """Return the bytes of the backward kernel's workspace for each head.

    They are float32 tiles of the query's gradient, with a lock and a counter each. If a tile
    has fewer rows than a head has elements, half types also have tiles of the gradients of keys
    and values. mem_eff_attention/kernel_backward.h: workspace_strideBH
    """
    query, key, value = launch["query"], launch["key"], launch["value"]
    size, size_value = query.size(-1), value.size(-1)
    most = max(size, size_value)
    tall, wide = _tile(launch, most)
    elements = -(-query.size(2) // tall) * -(-size // wide) * (tall * wide + 4)
    in_registers = most <= (64 if tall == 64 else 128)
    if query.dtype in HALVES and not in_registers:
        splits = 1 if torch.are_deterministic_algorithms_enabled() else -(-key.size(2) // wide)
        elements += splits * wide * (round_up(size, tall) + round_up(size_value, tall))
    return round_up(elements, 4) * 4


def _tile(launch: Launch, size: int) -> tuple[int, int]:
    """Return rows and columns of the first kernel that takes such heads.

    The kernels are those of kernels/cutlassB.h, in their order.
    """
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
    """Yield the seed of the dropout, the results and a small workspace.

    The seed is on the card. Result and statistics follow.
    """
    numbers = dict(enumerate(launch.outs))
    small = [n for n, spec in numbers.items() if spec.dtype is torch.int64 and not spec.size]
    for number in small:
        yield out(number)
    for number in numbers:
        if number not in small:
            yield out(number)
    yield DNN
    if launch["query"].size(2) == 1 and launch.card.capability in SPLIT_ON:
        if nbytes := _split(launch):
            yield temporary("workspace", nbytes)
    elif launch.card.capability < BLACKWELL:
        yield temporary("workspace", CUDNN_WORKSPACE)
    elif launch["dropout_p"]:
        yield temporary("workspace", _dropped(launch) + BLACKWELL_WORKSPACE)


def _split(launch: Launch) -> int:
    """Return the bytes of the keys' splits for one query each; 0: unsplit.

    They are results and statistics of the parts. There are as many parts as fill the card with
    two blocks each: a power of two, with 128 keys or more in each.
    """
    batch, heads, _, size = launch["query"].size()
    _, groups, keys, _ = launch["key"].size()
    most = min(keys // 128, 2 * launch.card.processors // (batch * groups), 64)
    parts = 1 << max(most.bit_length() - 1, 0)
    if keys <= 512 or parts < 4:
        return 0
    rows = parts * batch * heads
    return rows * size * 4 + 2 * round_up(rows * 4, 128) + 128


def _dropped(launch: Launch) -> int:
    """Return the bytes of a dropout's bits; 0 without one.

    There is a bit for each score, in whole tiles.
    """
    (batch, heads, rows, _), keys = launch["query"].size(), launch["key"].size(2)
    tiles = round_up(rows, BLACKWELL_TILE) * round_up(keys, BLACKWELL_TILE)
    return batch * heads * tiles // 8 if launch["dropout_p"] else 0


def cudnn_backward(launch: Launch) -> Iterator[Step]:
    """Yield gradients, a float32 accumulator and row sums.

    The accumulator is that of the query's gradient. With grouped queries there are also the
    gradients of keys and values for every head before they are added up. A gradient that is
    expanded from a number is copied first. Blackwell's kernels have the dropped scores' bits,
    and a second accumulator if there is one tile of rows or keys.
    """
    query, key, gradient = launch["query"], launch["key"], launch["grad_out"]
    batch, heads, rows, size = query.size()
    for number in range(len(launch.outs)):
        yield out(number)
    if gradient.stride(-1) != 1:
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    yield DNN
    plans = 0
    if key.size(1) != heads:
        plans += 2 * batch * heads * key.size(2) * size * query.element_size()
    if launch.card.capability < BLACKWELL:
        plans += CUDNN_WORKSPACE
    else:
        plans += _dropped(launch)
        if not launch["dropout_p"] and min(rows, key.size(2)) <= BLACKWELL_TILE:
            plans += batch * heads * round_up(rows, 8) * size * 4
        plans += BLACKWELL_WORKSPACE if plans else 0
    yield temporary("workspace", batch * heads * rows * (size * 4 + 4) + plans)


def safe_softmax(launch: Launch) -> Iterator[Step]:
    """Yield the softmax and the search for rows without any score.

    Such rows are set to zero in place.
    """
    tensor = launch["self"]
    yield out()
    yield temporary("is -inf", tensor.numel())
    along = tensor.size(launch["dim"]) if tensor.dim() else 1
    yield temporary("whole rows", tensor.numel() // max(1, along))
    yield temporary("zero", tensor.element_size())
