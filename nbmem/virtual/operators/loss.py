"""Losses: the terms of all elements, beside the result that they are reduced into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operators import reduce
from nbmem.virtual.operators.operator import Kernel, drop, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step


def reduced(launch: Launch) -> Iterator[Step]:
    """The result has the storage of all terms already; a reduction reads them from another."""
    yield out()
    if launch["reduction"]:
        yield temporary("terms", launch.outs[0].nbytes)
        yield from _reduction(launch)


def in_place(launch: Launch) -> Iterator[Step]:
    """The result has the storage of all terms, which are read into a number and that copied."""
    yield out()
    if launch["reduction"]:
        yield temporary("reduced", launch.outs[0].dtype.itemsize)
        yield from _reduction(launch)


def huber(launch: Launch) -> Iterator[Step]:
    """All terms, then a result of its own."""
    if launch["reduction"]:
        yield temporary("terms", launch["self"].numel() * launch["self"].element_size())
    yield out()
    if launch["reduction"]:
        yield from _reduction(launch)


def _reduction(launch: Launch) -> Iterator[Step]:
    terms = torch.empty(
        torch.broadcast_shapes(launch["self"].size(), launch["target"].size()), device="meta"
    )
    item = reduce.accumulator(launch.outs[0].dtype)
    yield from reduce.shared(terms, range(terms.dim()), item, launch.card)


def bce_with_logits(launch: Launch) -> Iterator[Step]:
    """The logarithm of the sigmoid, the weights of positives, and the loss of each element."""
    tensor, weight = launch["self"], launch["pos_weight"]
    size = tensor.numel() * tensor.element_size()
    yield temporary("log sigmoid", size)
    if weight is not None:
        yield temporary("weight - 1", weight.numel() * weight.element_size())
        yield temporary("weight", size)
        yield drop("weight - 1")
        yield drop("weight")
    if not launch["reduction"]:
        yield out()
        return
    yield temporary("losses", size)
    dims = tuple(range(tensor.dim()))
    yield from reduce.steps(launch, tensor, dims, reduce.accumulator(tensor.dtype))


KERNELS = (
    Kernel(
        ops=("binary_cross_entropy_with_logits",),
        rule=bce_with_logits,
        source="aten/src/ATen/native/Loss.cpp: binary_cross_entropy_with_logits",
        shown_by="dlrm_like_b2048_adagrad, forward",
    ),
    Kernel(
        ops=("mse_loss", "smooth_l1_loss"),
        rule=reduced,
        source="aten/src/ATen/native/Loss.cpp: TORCH_IMPL_FUNC(mse_loss_out)",
        shown_by="none of the H100's runs; on the CPU, whose code it is, the storage shows it",
    ),
    Kernel(
        ops=("binary_cross_entropy", "soft_margin_loss"),
        rule=in_place,
        source="aten/src/ATen/native/cuda/Loss.cu: binary_cross_entropy_out_cuda; Loss.cpp",
        shown_by="none of the H100's runs has one",
    ),
    Kernel(
        ops=("huber_loss",),
        rule=huber,
        source="aten/src/ATen/native/Loss.cpp: huber_loss",
        shown_by="none of the H100's runs has one",
    ),
)
