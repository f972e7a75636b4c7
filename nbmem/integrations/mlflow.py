"""Log the figures of a trace as metrics of an MLflow run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.integrations.scalars import scalars

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.report.model import Report


def log(
    source: Trace | Report,
    step: int | None = None,
    run_id: str | None = None,
    prefix: str = "nbmem",
) -> None:
    """Log the figures of a trace as metrics of a run.

    Args:
        source: A trace that has ended, or its report.
        step: The step of the figures.
        run_id: The run; None for the active one, which MLflow starts if there is none.
        prefix: Prefix of the figures' names.

    Raises:
        NbmemError: The trace still runs, or saw no GPU memory.
    """
    import mlflow

    metrics = {name: float(size) for name, size in scalars(source, prefix).items()}
    mlflow.log_metrics(metrics, step=step, run_id=run_id)
