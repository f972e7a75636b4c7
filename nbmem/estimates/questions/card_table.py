"""Decide on which cards of the table a program would run as it is.

One run on a card without a limit decides most of them by its requests. The program is run on a card
where they do not suffice: its kernels of attention are others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.api.common_cards import card_size
from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.estimates.card_choice import card_for, figures_of
from nbmem.estimates.runs.probe_run import ENDLESS, Request, probe, record_requests, refuse
from nbmem.report.analysis import card_ledger_of
from nbmem.report.analysis.would_run_on import would_run_on
from nbmem.report.card_choice import SuitableCards
from nbmem.virtual.card_names import find_card
from nbmem.virtual.cards import CARDS, Card

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.report.estimate_results import Probe
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import CardFit

MEASURED = "H100 80GB"
"""The card whose run decides the others."""
MOST_EVENTS = 3_000_000
"""Events that the replays of a recording may have: less time than the runs that they spare."""


def endless(card: Card) -> Card:
    """Return a card of a kind without a limit."""
    return replace(card, total_bytes=ENDLESS, nvml_total=ENDLESS)


def decide(
    found: CardLedger, card: Card, others: tuple[Card, ...], margin: float
) -> tuple[CardFit, ...]:
    """Decide cards by the requests that were recorded without a limit.

    Args:
        found: The ledger of the run.
        card: The kind of card on which it was.
        others: The cards to decide.
        margin: Part of each that is to stay free.
    """
    recorded = replace(card_size(card), key="")  # no card of the list: this one had no end
    sizes = [card_size(one) for one in others]
    answer = would_run_on(found, sizes, recorded, margin, MOST_EVENTS)
    return () if answer is None else answer.cards


def decided_by_run(one: CardFit, run: Callable[[Card], Probe]) -> CardFit:
    """Run the program on a card that the recorded requests do not decide."""
    card = card_for(one.card)
    found = run(card)
    fits = found.fits or found.wanted <= card.total_bytes
    return replace(
        one,
        fits=fits,
        margin=found.fits,
        spare=max(card.total_bytes - found.process, 0) if fits else None,
        short=None if fits else max(found.wanted - card.total_bytes, 0) or None,
        releases=fits and found.process < found.wanted,
        exact=True,
        how="the program was run on such a virtual card",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run without a limit, and what it says of the cards."""

    allocated: int
    process: int
    cards: tuple[CardFit, ...]


def _run(program: Program, margin: float) -> _Run:
    card = find_card(MEASURED)
    request = Request(card=endless(card), compiled=True)
    session, _ = record_requests(program, request)
    if session.error is not None or not session.devices:
        refuse(probe(program, Request(card=card)).probe, "as it is")
    found = card_ledger_of(session, None)
    at = int(np.argmax(found.allocated))
    ledger = found.ledger(at)
    return _Run(
        allocated=ledger.allocated,
        process=int(found.reserved.max()) + int(ledger[Category.CONTEXT]),
        cards=decide(found, card, CARDS, margin),
    )


def _probe(program: Program, request: Request) -> Probe:
    return probe(program, request).probe


def ask(
    call: Callable[..., Any], title: str, margin: float, tell: Callable[[str], None]
) -> SuitableCards:
    """Decide every card of the table.

    Args:
        call: Asks a question about the program in the process of the estimate.
        title: The program's name.
        margin: Part of each card to keep free.
        tell: Called with a line of text after every run.

    Raises:
        UsageError: The program fails.
    """
    card = find_card(MEASURED)
    found: _Run = call(_run, margin)
    tell(f"{card.key}: {format_bytes(found.process)}")

    def run(other: Card) -> Probe:
        kept = int(other.total_bytes * margin)
        answer: Probe = call(_probe, Request(card=other, margin=kept, compiled=True))
        tell(f"{other.key}: {format_bytes(answer.need)}")
        return answer

    decided = tuple(decided_by_run(one, run) if one.fits is None else one for one in found.cards)
    return SuitableCards(
        title=title,
        card=figures_of(card, int(card.total_bytes * margin)),
        allocated=found.allocated,
        process=found.process,
        cards=decided,
    )
