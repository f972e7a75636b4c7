"""Log the figures of a trace to a run of Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.integrations.scalars import scalars

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.report.model import Report


def log(
    source: Trace | Report, run: Any = None, step: int | None = None, prefix: str = "nbmem"
) -> None:
    """Log the figures of a trace to a run, in one row.

    Args:
        source: A trace that has ended, or its report.
        run: The result of `wandb.init()`; None for the active run.
        step: The step of the figures; None for the run's own.
        prefix: Prefix of the figures' names.

    Raises:
        NbmemError: The trace still runs, or saw no GPU memory.
        wandb.Error: No run is active.
    """
    if run is None:
        import wandb

        run = wandb
    run.log(scalars(source, prefix), step=step)
