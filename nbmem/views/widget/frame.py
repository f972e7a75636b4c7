"""The allocations of a moment as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.views.explorer.naming import parts_of

if TYPE_CHECKING:
    import pandas as pd

    from nbmem.report import Report


def largest_at(report: Report, event: int) -> pd.DataFrame:
    """What is known of the allocations that live before an event, the largest first.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise UsageError(
            "A DataFrame needs pandas, which is not installed: pip install pandas."
        ) from None

    lives = report.details.lives if report.details else ()
    found = [life for life in lives if life.born < event <= life.freed]
    found.sort(key=lambda life: -life.requested)
    parts = [parts_of(life) for life in found]
    return pd.DataFrame(
        {
            "bytes": [life.requested for life in found],
            "block": [life.block for life in found],
            "category": [life.category.label for life in found],
            "name": [part.name for part in parts],
            "holder": [part.group for part in parts],
            "shape": [part.shape for part in parts],
            "dtype": [part.dtype for part in parts],
            "born_in": [life.born_in for life in found],
            "line": [life.line for life in found],
        }
    )
