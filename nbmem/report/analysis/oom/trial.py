"""Data of one failed request that the remedies read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbmem.core.session.categories import Category
    from nbmem.report.analysis.oom.failed_request import FailedRequest
    from nbmem.report.analysis.oom.live_groups import AllocationGroup
    from nbmem.report.analysis.oom.request_replay import FailureReplay

    Ints = NDArray[np.int64]


@dataclass(slots=True)
class Trial:
    """One failed request, and ways to try it again.

    Attributes:
        case: The figures of the failed request.
        held: The rows live at that moment.
        phase: The phase in which it was made.
        rerun: A replay of the recording up to it.
    """

    case: FailedRequest
    held: Sequence[AllocationGroup]
    phase: str | None
    rerun: FailureReplay

    def rows(self, *categories: Category) -> Ints:
        """Return the live allocations of some categories, by allocation time."""
        case = self.case
        rows = case.card_ledger.live(case.index)
        return rows[np.isin(case.card_ledger.category[rows], categories)]

    def new_rows(self, *categories: Category) -> Ints:
        """Return the live allocations of some categories made in this step."""
        rows = self.rows(*categories)
        return rows[self.case.of_this_step(rows)]

    def bytes_of(self, rows: Ints) -> int:
        """Sum the block bytes of some allocations."""
        return int(self.case.card_ledger.allocations.block[rows].sum())
