"""Describe the cards of a recording that a report does not show."""

from __future__ import annotations

from nbmem.core.units import format_bytes
from nbmem.report.analysis.lifetimes import phase_at
from nbmem.report.ledger.card_ledger import Books


def other_cards(books: Books) -> tuple[str, ...]:
    """Return a sentence for each card beside the shown one, in order.

    Args:
        books: The shown card's books.
    """
    session = books.session
    others = (i for i, trace in enumerate(session.devices) if trace is not books.trace)
    return tuple(_sentence(Books(session, index)) for index in others)


def _sentence(books: Books) -> str:
    info, allocated = books.trace.info, books.allocated
    top = books.peak(0, books.events)
    phase = phase_at(books, top)
    where = f" in {phase}" if phase else ""
    return (
        f"cuda:{info.index} ({info.name}) was used, too: up to {format_bytes(int(allocated[top]))} "
        f"allocated{where}, {format_bytes(int(allocated[-1]))} at the end. Its report: "
        f"`%nbmem report --device {info.index}`, in Python `trace.report({info.index})`, in a "
        f"terminal `nbmem report FILE --device {info.index}`."
    )
