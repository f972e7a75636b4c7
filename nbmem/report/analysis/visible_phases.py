"""Choose the phases that a report shows.

All phases are shown, or a part of those of a long loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.core.session.session import Session
    from nbmem.core.session.spans import Span
    from nbmem.report.ledger.card_ledger import CardLedger

FIRST_PHASES = 1_000
"""Phases at the beginning that are always shown: warm-up and first steps."""
LAST_PHASES = 4_000
"""Phases shown at the end. This bounds what is drawn and written, however long the loop runs."""


def visible_spans(card_ledger: CardLedger, peak: int) -> list[Span]:
    """Return the phases and blocks that are shown, in order.

    If there are too many: the first, the last and those of the peak's step.

    Args:
        card_ledger: The card's ledger.
        peak: Position of the recording's peak.
    """
    spans = _phases(card_ledger.session)
    spans.sort(
        key=lambda span: (card_ledger.bounds(span)[0], span.t0_ns, -card_ledger.bounds(span)[1])
    )
    if len(spans) <= FIRST_PHASES + LAST_PHASES:
        return spans
    middle = spans[FIRST_PHASES:-LAST_PHASES]
    over = [first <= peak <= last for first, last in map(card_ledger.bounds, middle)]
    steps = {span.step for span, is_over in zip(middle, over, strict=True) if is_over} - {None}
    there = [s for s, is_over in zip(middle, over, strict=True) if is_over or s.step in steps]
    return [*spans[:FIRST_PHASES], *there[:LAST_PHASES], *spans[-LAST_PHASES:]]


def hidden_phases_note(session: Session) -> str | None:
    """Return a note if not all phases are shown, else None."""
    phases = len(_phases(session))
    if phases <= FIRST_PHASES + LAST_PHASES:
        return None
    return (
        f"Of {phases} phases the first {FIRST_PHASES} and the last {LAST_PHASES} are shown, and "
        "those of the step with the highest moment; the peak and all sums are of all."
    )


def _phases(session: Session) -> list[Span]:
    return [span for span in session.spans if span.kind != "cell"]
