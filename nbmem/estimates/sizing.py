"""How many cards a program needs: the same program in worlds of several sizes, each run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.answers import Worlds
from nbmem.core.names import with_article
from nbmem.core.units import format_bytes
from nbmem.estimates.apart import Apart
from nbmem.estimates.cards import figures_of
from nbmem.estimates.fitting import MARGIN
from nbmem.estimates.probing import Request, probe, refuse
from nbmem.estimates.ranks import NO_GROUP, of_world, world_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.answers import CardFigures, Probe
    from nbmem.estimates.programs import Program
    from nbmem.virtual.cards import Card

_SENT = (
    "What is communicated is of the last step: the bytes of each collective's larger side. A ring "
    "moves nearly as much over each card's link, for an all-reduce twice that."
)


def worlds(
    program: Program,
    gpu: str | Card | None,
    ranks: Sequence[int],
    *,
    margin: float = MARGIN,
    tell: Callable[[str], None] = lambda _text: None,
) -> Worlds:
    """Run a program as rank 0 of each world, whose shards are the largest.

    Args:
        program: As torchrun starts it.
        gpu: Each rank's card, by name; None as for `nbmem.fit`.
        ranks: Ranks of each world.
        margin: Part of the card to keep free.
        tell: Hears a line about every run.

    Raises:
        NbmemError: The program does not run, or there is no such card or world.
    """
    places = [world_for(gpu, count) for count in sorted(set(ranks))]
    card = places[0][0]
    kept = int(card.total_bytes * margin)
    runs: list[tuple[int, Probe]] = []
    for _, world in places:
        with Apart(of_world(program, world)) as apart:
            found = apart.ask(probe, Request(card=card, margin=kept)).probe
        count = 1 if world is None else world.world
        refuse(found, f"as rank 0 of {count}")
        tell(f"{count} ranks: {format_bytes(found.need)}")
        runs.append((count, found))
    figures = figures_of(card, kept)
    return Worlds(
        title=program.title, card=figures, runs=tuple(runs), sentences=_sentences(runs, figures)
    )


def _sentences(runs: Sequence[tuple[int, Probe]], card: CardFigures) -> tuple[str, ...]:
    room = card.total - card.margin
    limit = f"{format_bytes(room)} on {with_article(card.name)}"
    fitting = [(ranks, found) for ranks, found in runs if found.fits]
    if fitting:
        ranks, found = fitting[0]
        first = f"The fewest of these cards that train it: {ranks} ({format_bytes(found.need)}"
        first += f" of {limit})."
    else:
        least = min(found.wanted for _, found in runs)
        first = f"It fits in none of these worlds: it takes {format_bytes(least)} at least, and "
        first += f"there are {limit}."
    alone = any(NO_GROUP in found.notes for _, found in runs)
    sent = any(found.sent for _, found in runs)
    said = (NO_GROUP if alone else "", _SENT if sent else "", card.share)
    which = "Each was run as rank 0: shards are handed out from the first rank on, so none has "
    return (first, f"{which}larger ones.", *filter(None, said))
