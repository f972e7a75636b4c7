"""Cards by their common names: `h100`, `A100-40GB`, `2xT4`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest_or_list
from nbmem.virtual.cards import CARDS, Card

MOST = 16
"""Cards of one machine, as in the largest that NVIDIA sold (DGX-2)."""
_MAKERS = frozenset(("nvidia", "geforce", "tesla", "quadro"))
"""Words that people write before a card's name, or leave out."""
_COUNTED = re.compile(r"(\d+)\s*x\s*(.+)", re.IGNORECASE)


def find_card(name: str | Card) -> Card:
    """Return a card by name, in any case and spelling of dashes.

    The maker's name may stand before it: "NVIDIA H100 80GB", "Tesla T4".

    Raises:
        UsageError: No such card; the message has the nearest name, or all.
    """
    if isinstance(name, Card):
        return name
    wanted = _plain(name)
    for card in CARDS:
        if wanted in set(map(_plain, (card.key, card.name, *card.aliases))):
            return card
    keys = [card.key for card in CARDS]
    meant = suggest_or_list(name, keys, lister="`nbmem gpus` (in a notebook `%nbmem gpu`)")
    raise UsageError(f"No card is called {name!r}. {meant}")


def find_cards(names: str | Card | tuple[Card, ...]) -> tuple[Card, ...]:
    """Return the cards of a machine by names, as in "H100, 2xT4".

    "T4" is one card, "2xT4" two of a kind, "H100, 2xT4" three of two kinds.

    Cards themselves are what they are.

    Raises:
        UsageError: No such card, none at all, or more than a machine has.
    """
    if isinstance(names, (Card, tuple)):
        return names if isinstance(names, tuple) else (names,)
    found: list[Card] = []
    for part in names.split(","):
        counted = _COUNTED.fullmatch(part.strip())
        count = int(counted[1]) if counted else 1
        if not 1 <= count <= MOST - len(found):
            raise UsageError(
                f"{names!r} asks for {count + len(found)} cards; a virtual machine has from 1 to "
                f"{MOST}, as in 2xT4."
            )
        found += [find_card(counted[2] if counted else part)] * count
    return tuple(found)


def described(cards: Iterable[Card]) -> str:
    """Describe virtual cards, as in "a virtual Tesla T4".

    Several cards are listed with their ordinals: "2 virtual Tesla T4 (cuda:0 to cuda:1)".
    """
    names = [card.name for card in cards]
    if len(names) == 1:
        return f"a virtual {names[0]}"
    if len(set(names)) == 1:
        return f"{len(names)} virtual {names[0]} (cuda:0 to cuda:{len(names) - 1})"
    listed = ", ".join(f"cuda:{index} {name}" for index, name in enumerate(names))
    return f"{len(names)} virtual cards ({listed})"


def _plain(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    while len(words) > 1 and words[0] in _MAKERS:
        del words[0]
    return " ".join(words)
