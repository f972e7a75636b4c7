"""Convert the allocations of a moment to a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.views.explorer.holding_names import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from nbmem.report.exploration import Lifetime


def frame_of(lives: Iterable[Lifetime]) -> pd.DataFrame:
    """Return allocations as a DataFrame, largest first, by number.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise UsageError(
            "A DataFrame needs pandas, which is not installed: pip install pandas."
        ) from None

    found = sorted(lives, key=lambda life: -life.requested)
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
        },
        index=pd.Index([life.number for life in found], name="tensor", dtype="int64"),
    )
