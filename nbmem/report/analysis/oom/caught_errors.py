"""Describe failed requests after which the program went on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from nbmem.report.ledger.card_ledger import CardLedger


def passed_over_note(card_ledger: CardLedger) -> str | None:
    """Return a note on requests that torch repeated with less, or None."""
    rows = sorted(card_ledger.refused.passed_over)
    if not rows:
        return None
    most = format_bytes(int(card_ledger.trace.events.size[rows].max()))
    count = "A request" if len(rows) == 1 else f"{len(rows):,} requests"
    return (
        f"{count} found no room (up to {most}), and the same lines went on with less: on a full "
        "card torch takes kernels of convolutions whose work areas are smaller, and which may be "
        "slower."
    )
