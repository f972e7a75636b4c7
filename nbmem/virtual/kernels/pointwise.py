"""Kernels without scratch memory that take their results in an order of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.kernels.plan import Kernel, out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step


def dropout(launch: Launch) -> Iterator[Step]:
    """The mask before the result."""
    for number in reversed(range(len(launch.outs))):
        yield out(number)


KERNELS = (
    Kernel(
        ops=("native_dropout",),
        rule=dropout,
        source="aten/src/ATen/native/cuda/Dropout.cu: dropout_cuda",
        shown_by="gpt2_b4s512_adamw, forward",
    ),
)
