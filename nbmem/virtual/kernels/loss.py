"""Losses: the terms of all elements, beside the result that they are reduced into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.kernels.plan import Kernel, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.kernels.plan import Launch, Step


def reduced(launch: Launch) -> Iterator[Step]:
    """The result has the storage of all terms already; a reduction reads them from another."""
    yield out()
    if launch["reduction"]:
        yield temporary("terms", launch.outs[0].nbytes)


KERNELS = (
    Kernel(
        ops=("mse_loss", "smooth_l1_loss"),
        rule=reduced,
        source="aten/src/ATen/native/Loss.cpp: TORCH_IMPL_FUNC(mse_loss_out)",
        shown_by="none of the H100's runs; on the CPU, whose code it is, the storage shows it",
    ),
)
