"""Compute the details of any moment of a recording exactly.

Views ask for them while the ledger is still in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.lifetimes import LIVES, lifetimes_of, lines_at, live_counts
from nbmem.report.analysis.moments import times_at
from nbmem.report.analysis.pool_history import pool_history
from nbmem.report.analysis.report_builder import recorded_times
from nbmem.report.exploration import MomentDetails

if TYPE_CHECKING:
    from nbmem.report.ledger.card_ledger import CardLedger


def moment_details(
    card_ledger: CardLedger, moment: int, *others: int, tensors: Sequence[int] = ()
) -> MomentDetails:
    """Compute one moment's details, and only the sums of other moments.

    Args:
        card_ledger: The card's ledger.
        moment: Index of the next event.
        others: Further moments.
        tensors: Allocations to include, even if not live at that moment.
    """
    positions = np.unique(np.array([moment, *others], np.int64))
    rows = card_ledger.live(moment)
    largest = rows[np.argsort(-card_ledger.allocations.requested[rows], kind="stable")][:LIVES]
    start, _ = recorded_times(card_ledger)
    return MomentDetails(
        t_ns=times_at(card_ledger, positions, start),
        event=positions,
        held=card_ledger.held(positions),
        live=live_counts(card_ledger, positions),
        lines=lines_at(card_ledger, positions),
        lives=lifetimes_of(card_ledger, sorted({*largest.tolist(), *tensors})),
        pool=pool_history(card_ledger, np.array([moment], np.int64)),
        parts=card_ledger.parts(positions),
    )


def position_at(card_ledger: CardLedger, t_ns: int) -> int:
    """Return the position at a time.

    Args:
        card_ledger: The card's ledger.
        t_ns: Nanoseconds since the start of the recording.
    """
    start, _ = recorded_times(card_ledger)
    return int(np.searchsorted(card_ledger.trace.events.t_ns, start + t_ns, side="right"))
