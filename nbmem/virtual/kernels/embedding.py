"""Embeddings: many indices are sorted before their gradients are added up.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/Embedding.cu and
EmbeddingBackwardKernel.cu
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.kernels.plan import Kernel, drop, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step

FEW_INDICES = 3072
"""Up to here one kernel adds without sorting."""
ROWS_PER_THREAD = 10
SCAN_SCRATCH = 1279
"""Bytes that CUB asks for to scan or to find unique keys of this size (gptneox_b8s512_adamw)."""


SORT_TILE = 4096
"""Pairs that one block of the sort takes: 4,096 are one tile and 8,192 two (nn_transformer)."""
SORT_HISTOGRAMS = 8 * 256 * 8
"""Counters of 256 digits in 8 passes over 64-bit keys."""


def sort_scratch(count: int) -> int:
    """Bytes that CUB's radix sort of 64-bit pairs asks for.

    Second buffers for keys and values, histograms, 256 counters for each tile, and alignment.
    """
    tiles = -(-count // SORT_TILE)
    return 16 * count + SORT_HISTOGRAMS + 1024 * tiles + 256 + 255


def lookup(launch: Launch) -> Iterator[Step]:
    """Indices are made contiguous first."""
    indices = launch["indices"]
    if not indices.is_contiguous():
        yield temporary("indices", indices.numel() * indices.element_size())
    yield out()


def backward(launch: Launch) -> Iterator[Step]:
    """A dense gradient; with many indices a sort, segments and partial sums."""
    indices = launch["indices"]
    count, item = indices.numel(), indices.element_size()
    rows = int(launch["num_weights"])
    width = launch["grad_output"].size(-1)
    gradient = launch["grad_output"]
    if not gradient.is_contiguous():
        yield temporary("gradient", gradient.numel() * gradient.element_size())
    if not indices.is_contiguous():
        yield temporary("indices", count * item)
    if count <= FEW_INDICES and not launch["scale_grad_by_freq"]:
        yield out()
        return
    yield from sorted_sums(count, item, rows, width)


def sorted_sums(count: int, item: int, rows: int, width: int) -> Iterator[Step]:
    """The sort, then the gradient, then what its segments need."""
    for name in ("sorted", "original", "range"):
        yield temporary(name, count * item)
    yield temporary("sort", sort_scratch(count))
    yield drop("sort")
    yield drop("range")
    yield out()
    yield temporary("segments", count * item)
    yield temporary("segment count", item)
    yield temporary("dummy", count * item)
    yield temporary("unique", SCAN_SCRATCH)
    yield drop("unique")
    yield drop("dummy")
    yield temporary("partials", count * item)
    yield temporary("partial offsets", count * item)
    yield temporary("scan", SCAN_SCRATCH)
    yield drop("scan")
    yield temporary("partial count", item)
    most = count // ROWS_PER_THREAD + min(count, rows)
    yield temporary("partial segments", most * item)
    yield temporary("partial sums", most * width * 4)


SOURCE = "aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu: embedding_backward_cuda_kernel"
KERNELS = (
    Kernel(
        ops=("embedding",),
        rule=lookup,
        source="aten/src/ATen/native/Embedding.cpp: embedding, index_select of contiguous indices",
        shown_by="bert_base_b16s128_adamw, forward: token types",
    ),
    Kernel(
        ops=("embedding_dense_backward",),
        rule=backward,
        source=SOURCE,
        shown_by="gptneox_b8s512_adamw, backward",
    ),
)
