"""Find the notebook cell and the phase of each event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.lifetimes import phase_text
from nbmem.report.ledger.phase_map import NOWHERE

if TYPE_CHECKING:
    from nbmem.report.ledger.card_ledger import Books


def cells_of(books: Books) -> list[str | None]:
    """Return the cell of each event, the innermost one, or None."""
    found: list[str | None] = [None] * books.events
    for span in books.session.spans:  # parents precede their children
        if span.kind == "cell":
            first, last = books.bounds(span)
            found[first:last] = [span.name] * (last - first)
    return found


def phases_of(books: Books) -> list[str | None]:
    """Return the phase of each event, with its step, or None."""
    texts = {index: phase_text(books, index) for index in range(NOWHERE, len(books.phases.spans))}
    return [texts[index] for index in books.phases.of(np.arange(books.events)).tolist()]
