"""Embeddings: many indices are sorted before their gradients are added up.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/Embedding.cu and
EmbeddingBackwardKernel.cu
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Operator, drop, out, temporary
from nbmem.virtual.operators.sorting import cub

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall

FEW_INDICES = 3072
"""Up to here one kernel adds without sorting."""
ROWS_PER_THREAD = 10
THREADS = 1024
"""Of a block at most (MAX_BLOCK_SIZE)."""
BLOCKS_PER_PROCESSOR = 4
"""With fewer blocks than that many for each multiprocessor, partial sums are added up at once
(MAX_ATOMIC_ACCUM_BLOCKS_PER_SM)."""
SUM, MEAN, MAX = range(3)


def lookup(launch: Launch) -> Iterator[Step]:
    """Yield the indices' copy where strides require one, then the result."""
    indices = launch["indices"]
    row = indices.reshape(-1)
    if row.untyped_storage()._cdata != indices.untyped_storage()._cdata:
        yield temporary("indices", indices.numel() * indices.element_size())
    yield out()


def backward(launch: Launch) -> Iterator[Step]:
    """Yield the dense gradient and, for many indices, a sort's memory.

    With many indices, or with frequencies, there are a sort, segments and partial sums.
    """
    indices, gradient = launch["indices"], launch["grad_output"]
    if not indices.is_contiguous():
        yield temporary("indices", indices.numel() * indices.element_size())
    if not gradient.is_contiguous():
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    if indices.numel() <= FEW_INDICES and not launch["scale_grad_by_freq"]:
        yield out()
        return
    yield from sorted_sums(launch, gradient)


def sorted_sums(launch: Launch, gradient: torch.Tensor, *, bags: bool = False) -> Iterator[Step]:
    """Yield the sort, then the gradient, then the memory of its segments."""
    indices = launch["indices"]
    count, item = indices.numel(), indices.element_size()
    for name in ("sorted", "original", "range"):
        yield temporary(name, count * item)
    bits = launch.outs[0].size[0].bit_length() if launch.rules.embedding_sorts_rows else None
    yield temporary("sort", cub.radix_sort(launch.card, count, item, item, bits))
    yield drop("sort")
    yield drop("range")
    if launch["scale_grad_by_freq"]:
        yield temporary("count", count * item)
    yield out()
    yield temporary("segments", count * item)
    yield temporary("segment count", 8)
    yield temporary("dummy", count * item)
    yield temporary("unique", cub.unique_by_key(launch.card, count, item))
    yield drop("unique")
    yield drop("dummy")
    most = min(count, launch.outs[0].size[0])
    yield temporary("partials", most * item)
    yield temporary("partial offsets", most * item)
    yield temporary("scan", cub.exclusive_sum(most, item))
    yield drop("scan")
    yield temporary("partial count", 8)
    partial = count // ROWS_PER_THREAD + most
    yield temporary("partial segments", partial * item)
    rows, width = launch.outs[0].size
    if not bags and _few_blocks(most, partial, width, launch.card):
        yield temporary("segment of each", partial * item)
        if gradient.element_size() < 4:
            yield temporary("sums in float32", rows * width * 4)
    else:
        yield temporary("partial sums", partial * width * max(4, gradient.element_size()))


def _few_blocks(segments: int, partial: int, width: int, card: Card) -> bool:
    """Return whether sums by segment would leave multiprocessors idle."""
    warps = -(-width // cub.WARP) * cub.WARP
    blocks = -(-segments * warps // min(warps, THREADS))
    return blocks < card.processors * BLOCKS_PER_PROCESSOR and partial > 4 * blocks


def bags(launch: Launch) -> Iterator[Step]:
    """Yield the bags' sizes, each index's bag, then the result."""
    for number in (2, 1, 0):
        yield out(number)


def bags_backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradient of bags.

    Sums and means are sorted whatever their number; maxima are scattered.
    """
    gradient = launch["grad"]
    if not gradient.is_contiguous():
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    if launch["mode"] == MAX or not launch["indices"].numel():
        yield out()
    else:
        yield from sorted_sums(launch, gradient, bags=True)


def sparse_bags_backward(executor: Executor, call: OperatorCall) -> Any:
    """Run the composite of a sparse gradient.

    Returns NotImplemented for a dense gradient.
    """
    if not call.argument("sparse", default=False):
        return NotImplemented
    named = (
        *("grad", "indices", "offsets", "offset2bag", "bag_size", "num_weights"),
        *("scale_grad_by_freq", "mode", "per_sample_weights", "padding_idx"),
    )
    with executor:
        return torch.ops.aten._embedding_bag_sparse_backward(*map(call.argument, named))


SOURCE = "aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel"
OPERATORS = (
    Operator(
        ("embedding",),
        memory=lookup,
        source="aten/src/ATen/native/Embedding.cpp: embedding, index_select of contiguous indices",
        shown_by="bert_base_b16s128_adamw, forward: token types",
    ),
    Operator(
        ("embedding_dense_backward",),
        memory=backward,
        source=SOURCE,
        shown_by="gptneox_b8s512_adamw, backward; with few rows t5_small_b8s256_adafactor",
    ),
    Operator(
        ("_embedding_bag", "_embedding_bag_forward_only"),
        memory=bags,
        source="aten/src/ATen/native/cuda/EmbeddingBag.cu: _embedding_bag_cuda",
    ),
    Operator(
        ("_embedding_bag_backward", "_embedding_bag_dense_backward"),
        run=sparse_bags_backward,
        memory=bags_backward,
        source="aten/src/ATen/native/cuda/EmbeddingBag.cu: embedding_bag_backward_cuda_sum_avg",
    ),
)
