"""FlashAttention 2 in torch: memory that its kernels take.

aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_fwd, mha_varlen_fwd,
mha_bwd, mha_varlen_bwd. Sequences of unequal lengths are stored one after the other, without a
dimension for the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from nbmem.virtual.operator_model.operator import contiguous, drop, out, outs, temporary
from nbmem.virtual.split_kv import num_splits

if TYPE_CHECKING:
    from torch import Tensor

    from nbmem.virtual.operator_model.operator import Launch, Step

RANDOM_STATE = 16
"""Bytes of a seed and an offset."""
PARTS_APART = 128
"""Rows of padding after each sequence of a varlen batch, in backward's buffers."""
_MAX_SPLITS = 128
_QUERY_BLOCK = 64
"""Rows of queries in a block of the split-KV kernel."""


class FlashSizes(NamedTuple):
    """Sizes of a call to FlashAttention.

    `queries` and `keys` are rows of the longest sequence.
    """

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int


def forward(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `_flash_attention_forward`.

    Its tensors have the rows before the heads. With sequences of unequal lengths the keys are
    split only for one query each. The heads of that query are copied into rows, and the result
    back.
    """
    query = launch["query"]
    sizes = _sizes(launch, query, launch["key"])
    if query.dim() == 4:
        yield from _forward(launch, sizes)
    elif not _is_one_query(launch, sizes):
        yield from _forward(launch, sizes, cuts=False)
    else:
        yield temporary("query", launch.outs[0].nbytes)
        yield temporary("result", launch.outs[0].nbytes)
        yield from _forward(launch, sizes, swapped=True)


def forward_by_heads(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `_scaled_dot_product_flash_attention`.

    Its tensors have the heads before the rows.
    """
    turned = (launch[name].transpose(1, 2) for name in ("query", "key"))
    yield from _forward(launch, _dense(*turned))


def _forward(
    launch: Launch, sizes: FlashSizes, *, cuts: bool = True, swapped: bool = False
) -> Iterator[Step]:
    """Yield the results, the splits of the keys and the random state.

    The result and the log-sum-exp come first. With a dropout there is a second random state
    beside that of the results.
    """
    results = list(outs(launch))
    if not swapped:
        yield results[0]
    yield results[1]
    parts = key_splits(launch, sizes) if cuts else 1
    if parts > 1:
        rows = parts * sizes.batch * sizes.heads * sizes.queries
        yield temporary("sums of parts", rows * 4)
        yield temporary("results of parts", rows * padded_head_size(sizes.size) * 4)
    yield from results[2:]
    if launch["dropout_p"]:
        yield temporary("state", RANDOM_STATE)
    if swapped:
        yield out(0)
        yield drop("result")
        yield temporary("query as it was", launch.outs[0].nbytes)
    if parts > 1:
        names = ("sums of parts", "results of parts")
        yield from map(drop, reversed(names) if swapped else names)


def backward(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `_flash_attention_backward`.

    Its tensors have the rows before the heads.
    """
    query, key = launch["query"], launch["key"]
    yield from contiguous(launch["grad_out"], launch["out"])
    yield from _backward(launch, _sizes(launch, query, key), key, apart=query.dim() == 3)


def backward_by_heads(launch: Launch) -> Iterator[Step]:
    """Yield the steps of FlashAttention's backward by heads.

    This is `_scaled_dot_product_flash_attention_backward`, which has the heads before the rows.
    """
    query, key, gradient, result = (
        launch[name].transpose(1, 2) for name in ("query", "key", "grad_out", "out")
    )
    yield from contiguous(gradient, result)
    yield from _backward(launch, _dense(query, key), key, apart=False)


def _backward(launch: Launch, sizes: FlashSizes, key: Tensor, *, apart: bool) -> Iterator[Step]:
    """Yield row sums and a float32 accumulator of the query's gradient.

    Sizes are rounded up to blocks. With grouped queries there are also the gradients of keys
    and values for every head. A deterministic accumulator is one for each block of a head.
    """
    rows = sizes.batch * next_multiple(sizes.queries, 128)
    if apart:
        rows = launch["query"].size(0) + PARTS_APART * sizes.batch
    yield from outs(launch)
    yield temporary("softmax_d", sizes.heads * rows * 4)
    copies = 1
    if torch.are_deterministic_algorithms_enabled():
        copies = -(-launch.card.processors // (sizes.batch * sizes.heads))
    yield temporary("dq_accum", copies * rows * sizes.heads * padded_head_size(sizes.size) * 4)
    if sizes.key_heads != sizes.heads:
        expanded = key.numel() // sizes.key_heads * sizes.heads * key.element_size()
        for name in ("dk_expanded", "dv_expanded"):
            yield temporary(name, expanded)


def _sizes(launch: Launch, query: Tensor, key: Tensor) -> FlashSizes:
    starts = launch["cum_seq_q"]
    if starts is None:
        return _dense(query, key)
    lengths = launch["max_q"], launch["max_k"]
    return FlashSizes(starts.numel() - 1, query.size(1), key.size(-2), *lengths, query.size(-1))


def _dense(query: Tensor, key: Tensor) -> FlashSizes:
    batch, queries, heads, size = query.size()
    return FlashSizes(batch, heads, key.size(2), queries, key.size(1), size)


def _is_one_query(launch: Launch, sizes: FlashSizes) -> bool:
    """Return whether one query's heads become rows (ngroups_swapped).

    These heads share keys.
    """
    return (
        sizes.queries == 1
        and sizes.heads > sizes.key_heads
        and sizes.size % 8 == 0
        and not launch["dropout_p"]
    )


def key_splits(launch: Launch, sizes: FlashSizes) -> int:
    """Return the number of splits of the keys (set_params_splitkv)."""
    if launch["dropout_p"]:
        return 1
    block = 256 if sizes.size <= 64 else 128 if sizes.size <= 128 else 64
    heads, queries = sizes.heads, sizes.queries
    if _is_one_query(launch, sizes):
        heads, queries = sizes.key_heads, sizes.heads // sizes.key_heads
    blocks = sizes.batch * heads * -(-queries // _QUERY_BLOCK)
    return num_splits(blocks, 2 * launch.card.processors, -(-sizes.keys // block), _MAX_SPLITS)


def padded_head_size(size: int) -> int:
    """Return the elements that a head takes in an accumulator."""
    return next_multiple(size, 32 if size <= 128 else 64)


def next_multiple(number: int, unit: int) -> int:
    """Return the next multiple of the unit."""
    return -(-number // unit) * unit
