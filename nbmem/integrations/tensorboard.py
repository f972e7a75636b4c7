"""Write the figures of a trace as TensorBoard scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.integrations.scalars import scalars

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.report.model import Report


def log(
    source: Trace | Report, writer: Any, step: int | None = None, prefix: str = "nbmem"
) -> None:
    """Write the figures of a trace with a SummaryWriter, exact to the byte.

    Args:
        source: A trace that has ended, or its report.
        writer: A `torch.utils.tensorboard.SummaryWriter`.
        step: The step of the figures.
        prefix: Prefix of the figures' names.

    Raises:
        NbmemError: The trace still runs, or saw no GPU memory.
    """
    for name, size in scalars(source, prefix).items():
        # The old style has 32 bits and would round above 16 MiB.
        writer.add_scalar(name, size, step, new_style=True, double_precision=True)
