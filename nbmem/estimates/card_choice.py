"""Select the card that an estimate is about."""

from __future__ import annotations

from nbmem import virtual
from nbmem.api import device_selection
from nbmem.core.errors import UsageError
from nbmem.report.estimate_results import CardFigures
from nbmem.virtual.card_names import find_card, find_cards
from nbmem.virtual.cards import Card

ALL = "all"
"""The name that stands for every card of the table."""


def is_all(gpu: str | Card | None) -> bool:
    """Return whether a name stands for every card."""
    return isinstance(gpu, str) and gpu.lower() == ALL


def card_for(gpu: str | Card | None) -> Card:
    """Return a card by its name.

    For None: the card in use here, virtual or real, else an H100.

    Raises:
        UsageError: There is no such card.
    """
    if isinstance(gpu, Card):
        return gpu
    if gpu is not None and gpu.lower() != device_selection.AUTO:
        cards = find_cards(gpu)
        if len(cards) > 1:
            raise UsageError(
                f"An estimate is about one card, and {gpu!r} is a machine of {len(cards)}. For a "
                f"program that torchrun starts on it, say how many ranks: --ranks {len(cards)}. "
                f"To see what a program takes of each, run it there: nbmem run SCRIPT --gpu {gpu}."
            )
        return cards[0]
    standing = virtual.active()
    if standing is not None:
        return standing.card
    real = device_selection.real_card()
    if real is not None:
        try:
            return find_card(real)
        except UsageError as err:
            raise UsageError(
                f"This machine has a {real}, which nbmem has no figures of, so it cannot be "
                f"estimated. Name one that it knows with --gpu. {err}"
            ) from None
    return find_card(device_selection.DEFAULT)


def figures_of(card: Card, margin: int) -> CardFigures:
    """Return a card's figures for an answer, with the margin kept free."""
    return CardFigures(
        name=card.name, total=card.total_bytes, margin=margin, driver=card.driver_bytes
    )
