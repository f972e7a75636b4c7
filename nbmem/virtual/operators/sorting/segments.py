"""Reductions of segments that are given by offsets or by lengths.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/SegmentReduce.cpp,
cuda/SegmentReduce.cu
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.virtual.operator_model.operator import LONG, Operator, contiguous, drop, out, temporary
from nbmem.virtual.operators.sorting import cub

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step


def reduced(launch: Launch) -> Iterator[Step]:
    """Plan `segment_reduce`: checks, the result, then offsets or lengths.

    Vectors are reduced by CUB, with one byte of scratch memory.
    """
    lengths, tensor = launch["lengths"], launch["data"]
    if lengths is not None and not launch["unsafe"]:
        rows = lengths.size()[:-1].numel()
        for name, size in (("shortest", LONG), ("sums", rows * LONG), ("fit", rows), ("all", 1)):
            yield temporary(name, size)
            if name == "shortest":
                yield drop(name)
        for name in ("all", "fit", "sums"):
            yield drop(name)
    yield out()
    yield from _places(launch)
    if tensor.dim() == 1:
        yield temporary("reduced", 1)


def backward(launch: Launch) -> Iterator[Step]:
    """Plan the backward; an expanded gradient is copied first."""
    yield from contiguous(launch["grad"])
    yield out()
    yield from _places(launch)


def _places(launch: Launch) -> Iterator[Step]:
    """Plan lengths from offsets, or offsets from lengths.

    Offsets are a zero followed by the lengths' sums.
    """
    lengths, offsets = launch["lengths"], launch["offsets"]
    if lengths is None:
        rows = offsets.size()[:-1].numel()
        yield temporary("lengths", (offsets.numel() - rows) * offsets.element_size())
        return
    rows, item = lengths.size()[:-1].numel(), lengths.element_size()
    yield temporary("zeros", rows * item)
    yield temporary("offsets", (lengths.numel() + rows) * item)
    yield drop("zeros")
    if rows == 1:
        yield temporary("sums", cub.cumulative(lengths.numel() + 1, LONG, torch_type=False))
        yield drop("sums")


OPERATORS = (
    Operator(
        ("segment_reduce",),
        memory=reduced,
        source="aten/src/ATen/native/SegmentReduce.cpp: segment_reduce_kernel",
    ),
    Operator(
        ("_segment_reduce_backward",),
        memory=backward,
        source="aten/src/ATen/native/SegmentReduce.cpp: _segment_reduce_backward_kernel",
    ),
)
