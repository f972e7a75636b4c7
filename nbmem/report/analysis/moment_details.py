"""Compute the details of any moment of a recording exactly.

Views ask for them while the ledger is still in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.lifetimes import LIVES, lines_at, live_counts, lives_of
from nbmem.report.analysis.moments import times_at
from nbmem.report.analysis.pool_history import pool_history
from nbmem.report.analysis.report_builder import recorded_times
from nbmem.report.exploration import Closeup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.report.ledger.card_ledger import Books


def closeup(books: Books, moment: int, *others: int, tensors: Sequence[int] = ()) -> Closeup:
    """Compute one moment's details, and only the sums of other moments.

    Args:
        books: The card's books.
        moment: Index of the next event.
        others: More of them.
        tensors: Allocations to tell of, wherever they lived.
    """
    positions = np.unique(np.array([moment, *others], np.int64))
    rows = books.live(moment)
    largest = rows[np.argsort(-books.allocations.requested[rows], kind="stable")][:LIVES]
    start, _ = recorded_times(books)
    return Closeup(
        t_ns=times_at(books, positions, start),
        event=positions,
        held=books.held(positions),
        live=live_counts(books, positions),
        lines=lines_at(books, positions),
        lives=lives_of(books, sorted({*largest.tolist(), *tensors})),
        pool=pool_history(books, np.array([moment], np.int64)),
        parts=books.parts(positions),
    )


def position_at(books: Books, t_ns: int) -> int:
    """Return the position at a time.

    Args:
        books: The card's books.
        t_ns: Nanoseconds since the start of the recording.
    """
    start, _ = recorded_times(books)
    return int(np.searchsorted(books.trace.events.t_ns, start + t_ns, side="right"))
