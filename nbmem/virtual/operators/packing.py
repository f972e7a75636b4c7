"""List operators that read a table of all tensors on the card.

FSDP2 packs gradients and unpacks weights with them.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cuda/TensorShape.cu
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import LONG, Operator, drop, outs, temporary

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step

BLOCK_BYTES = 128 * 16
"""What one block copies: its threads, 16 bytes each (BLOCK_SIZE * BYTES_PER_THREAD)."""
BLOCK_THREADS = 128


def chunk_cat(launch: Launch) -> Iterator[Step]:
    """Plan `_chunk_cat`: the result and a table of tensors and blocks.

    The table has entries for each tensor, and for each block of a chunk.

    Tensors that are not contiguous are copied, with their padding, and concatenated.
    """
    tensors, count, dim = launch["tensors"], launch["num_chunks"], launch["dim"]
    target = launch["out"] if "out" in launch.call.kwargs else tensors[0]
    item = target.element_size()
    chunks = []
    for tensor in tensors:
        behind = tensor.size()[dim % tensor.dim() + 1 :].numel()
        chunks.append(-(-tensor.size(dim) // count) * behind * item)
    if all(tensor.is_contiguous() for tensor in tensors):
        yield from outs(launch)
        blocks = sum(-(-chunk // BLOCK_BYTES) for chunk in chunks)
        yield temporary("table", (6 * len(tensors) + 2 + blocks) * LONG)
        return
    for number, (tensor, chunk) in enumerate(zip(tensors, chunks, strict=True)):
        ahead = tensor.size()[: dim % tensor.dim()].numel()
        yield temporary(f"padded {number}", ahead * chunk * count)
    yield from outs(launch)
    for number in range(len(tensors)):
        yield drop(f"padded {number}")


def split_copy(launch: Launch) -> Iterator[Step]:
    """Plan the table of `split_with_sizes_copy`.

    It has the address and size of each part, and the part of each block.
    """
    tensor, sizes, parts = launch["self"], launch["split_sizes"], launch["out"]
    dim = launch["dim"] % tensor.dim()
    if any(part.dtype is not tensor.dtype for part in parts) or not tensor.is_contiguous():
        return
    behind = tensor.size()[dim + 1 :].numel() * tensor.element_size()
    rows = tensor.size()[:dim].numel()
    blocks = sum(-(-size * behind // BLOCK_BYTES) for size in sizes)
    card = launch.card
    most = card.processors * card.multiprocessor.threads // BLOCK_THREADS * 2
    factor = -(-blocks * rows // most)
    steps = -(-factor // max(1, min(math.ceil(math.sqrt(factor)), rows)))
    blocks = sum(-(-size * behind // (BLOCK_BYTES * max(1, steps))) for size in sizes)
    yield temporary("table", (4 * len(sizes) + 1 + blocks) * LONG)


def unpack(gathered: torch.Tensor, sizes: list[int], dim: int = 0, *, out: Any) -> None:
    """Run `fsdp::split_with_sizes_copy`, FSDP2's name; return nothing."""
    torch.split_with_sizes_copy(gathered, sizes, dim=dim, out=out)


def pack(tensors: list[torch.Tensor], dim: int, count: int, *, out: torch.Tensor) -> None:
    """Run `fsdp::chunk_cat`, FSDP2's name for `_chunk_cat`."""
    torch._chunk_cat(tensors, dim, count, out=out)


_SOURCE = "aten/src/ATen/native/cuda/TensorShape.cu: "
OPERATORS = (
    Operator(
        ("_chunk_cat", "_chunk_cat.out"),
        memory=chunk_cat,
        source=_SOURCE + "_chunk_cat_cuda, get_chunk_cat_metadata",
    ),
    Operator(
        ("split_with_sizes_copy.out",),
        memory=split_copy,
        source=_SOURCE + "split_with_sizes_copy_out_cuda_contiguous_no_cast",
    ),
    Operator(("fsdp::split_with_sizes_copy",), composite=unpack),
    Operator(("fsdp::chunk_cat",), composite=pack),
)
