"""Histograms: the range of the values is read by the CPU where the program does not give it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.operators import reduce
from nbmem.virtual.operators.operator import Kernel, drop, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step


def _extremes(launch: Launch) -> Iterator[Step]:
    """Smallest and largest, one after the other."""
    tensor = launch["self"]
    item = tensor.element_size()
    for _ in range(2):
        yield temporary("extreme", item)
        yield from reduce.shared(tensor, range(tensor.dim()), item, launch.card)
        yield drop("extreme")


def bincount(launch: Launch) -> Iterator[Step]:
    """The largest value says how many bins there are."""
    if launch["self"].numel():
        yield from _extremes(launch)
    yield out()


def histc(launch: Launch) -> Iterator[Step]:
    """The bins, then their range."""
    yield out()
    if launch["self"].numel() and launch["min"] == launch["max"]:
        yield from _extremes(launch)


KERNELS = (
    Kernel(
        ops=("bincount",),
        rule=bincount,
        source="aten/src/ATen/native/cuda/SummaryOps.cu: _bincount_cuda_template",
        shown_by="none of the H100's runs has one",
    ),
    Kernel(
        ops=("histc",),
        rule=histc,
        source="aten/src/ATen/native/cuda/SummaryOps.cu: _histc_cuda_template",
        shown_by="none of the H100's runs has one",
    ),
)
