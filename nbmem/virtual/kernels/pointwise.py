"""Kernels over every element that take their results, or little else, in an order of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.kernels.plan import Kernel, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step


def dropout(launch: Launch) -> Iterator[Step]:
    """The mask before the result."""
    for number in reversed(range(len(launch.outs))):
        yield out(number)


def roll(launch: Launch) -> Iterator[Step]:
    """One dimension after the other: what the first one makes stays until the last is done."""
    for number in range(1, len(launch["dims"])):
        yield temporary(f"rolled {number}", launch.outs[0].nbytes)
    yield out()


CHUNK = 65_536
"""Elements of one chunk of a list of tensors (kChunkSize)."""


def norms(launch: Launch) -> Iterator[Step]:
    """One number for each chunk, as many for every tensor as the largest has; then the results."""
    tensors = launch["self"]
    most = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    item = 8 if launch.outs[0].dtype is torch.float64 else 4
    yield temporary("norms of chunks", len(tensors) * most * item)
    for number in range(len(launch.outs)):
        yield out(number)


KERNELS = (
    Kernel(
        ops=("native_dropout",),
        rule=dropout,
        source="aten/src/ATen/native/cuda/Dropout.cu: dropout_cuda",
        shown_by="gpt2_b4s512_adamw, forward",
    ),
    Kernel(
        ops=("roll",),
        rule=roll,
        source="aten/src/ATen/native/TensorTransformations.h: roll_common",
        shown_by="swin_t_b32_adamw, forward: shifted windows",
    ),
    Kernel(
        ops=("_foreach_norm.Scalar",),
        rule=norms,
        source="aten/src/ATen/native/cuda/ForeachReduceOp.cu: foreach_tensor_norm_cuda",
        shown_by="none of the H100's runs clips its gradients",
    ),
)
