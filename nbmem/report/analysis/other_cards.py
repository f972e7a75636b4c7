"""Describe the cards of a recording that a report does not show."""

from __future__ import annotations

from nbmem.core.units import format_bytes
from nbmem.report.analysis.lifetimes import phase_at
from nbmem.report.ledger.card_ledger import CardLedger


def other_cards(card_ledger: CardLedger) -> tuple[str, ...]:
    """Return a sentence for each card beside the shown one, in order.

    Args:
        card_ledger: The shown card's ledger.
    """
    session = card_ledger.session
    others = (i for i, trace in enumerate(session.devices) if trace is not card_ledger.trace)
    return tuple(_sentence(CardLedger(session, index)) for index in others)


def _sentence(card_ledger: CardLedger) -> str:
    info, allocated = card_ledger.trace.info, card_ledger.allocated
    top = card_ledger.peak(0, card_ledger.events)
    phase = phase_at(card_ledger, top)
    where = f" in {phase}" if phase else ""
    return (
        f"cuda:{info.index} ({info.name}) was used, too: up to {format_bytes(int(allocated[top]))} "
        f"allocated{where}, {format_bytes(int(allocated[-1]))} at the end. Its report: "
        f"`%nbmem report --device {info.index}`, in Python `trace.report({info.index})`, in a "
        f"terminal `nbmem report FILE --device {info.index}`."
    )
