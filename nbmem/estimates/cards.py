"""Which card an estimate is about."""

from __future__ import annotations

from nbmem import devices, virtual
from nbmem.answers import CardFigures
from nbmem.core.errors import UsageError
from nbmem.virtual.cards import Card
from nbmem.virtual.naming import find_card, find_cards


def card_for(gpu: str | Card | None) -> Card:
    """A card by its name; None for the one in use here, virtual or real, else an H100.

    Raises:
        UsageError: There is no such card.
    """
    if isinstance(gpu, Card):
        return gpu
    if gpu is not None and gpu.lower() != devices.AUTO:
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
    real = devices.real_card()
    if real is not None:
        try:
            return find_card(real)
        except UsageError as err:
            raise UsageError(
                f"This machine has a {real}, which nbmem has no figures of, so it cannot be "
                f"estimated. Name one that it knows with --gpu. {err}"
            ) from None
    return find_card(devices.DEFAULT)


def figures_of(card: Card, margin: int) -> CardFigures:
    """A card as answers have it, with what is kept free of it."""
    return CardFigures(
        name=card.name, total=card.total_bytes, margin=margin, driver=card.driver_bytes
    )
