"""Find the notebook cell and the phase of each event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.lifetimes import phase_text
from nbmem.report.ledger.phase_map import NOWHERE

if TYPE_CHECKING:
    from nbmem.report.ledger.card_ledger import CardLedger


def cells_of(card_ledger: CardLedger) -> list[str | None]:
    """Return the cell of each event, the innermost one, or None."""
    found: list[str | None] = [None] * card_ledger.events
    for span in card_ledger.session.spans:  # parents precede their children
        if span.kind == "cell":
            first, last = card_ledger.bounds(span)
            found[first:last] = [span.name] * (last - first)
    return found


def phases_of(card_ledger: CardLedger) -> list[str | None]:
    """Return the phase of each event, with its step, or None."""
    texts = {
        index: phase_text(card_ledger, index)
        for index in range(NOWHERE, len(card_ledger.phases.spans))
    }
    return [texts[index] for index in card_ledger.phases.of(np.arange(card_ledger.events)).tolist()]
