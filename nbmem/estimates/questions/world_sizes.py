"""Find how many cards a program needs by running worlds of many sizes.

A program that torchrun starts is run as it is. A program for one card is run under every
parallelism that can spread it (`parallel_variants.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.estimates.card_choice import figures_of
from nbmem.estimates.questions import parallel_variants
from nbmem.estimates.remedies import PARALLELISMS
from nbmem.estimates.remedies.variants import VARIANTS, ShardedForDDP, WrappedZeroOptimizer
from nbmem.estimates.runs.probe_run import Request, probe, refuse
from nbmem.estimates.runs.subprocess_client import EstimateProcess
from nbmem.estimates.world_choice import NO_GROUP, of_world, world_for
from nbmem.report.estimate_results import MARGIN, CardFigures, Probe, Way, Worlds

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.virtual.cards import Card
    from nbmem.virtual.virtual_worlds import VirtualWorld

    Places = Sequence[VirtualWorld]
    Tell = Callable[[str], None]

_SENT = (
    "What is communicated is of the last step: the bytes of each collective's larger side. A ring "
    "moves nearly as much over each card's link, for an all-reduce twice that."
)
_FIRST = "Each was run as rank 0: shards are handed out from the first rank on, so none has larger"


def worlds(
    program: Program,
    gpu: str | Card | None,
    ranks: Sequence[int],
    *,
    margin: float = MARGIN,
    tell: Tell = lambda _text: None,
) -> Worlds:
    """Run a program in several worlds, each as the rank that needs most.

    Args:
        program: As torchrun starts it, or for one card.
        gpu: Each rank's card, by name; None as for `nbmem.fit`.
        ranks: Ranks of each world.
        margin: Part of the card to keep free.
        tell: Called with a line of text after every run.

    Raises:
        NbmemError: The program does not run, or there is no such card or world.
    """
    found = [world_for(gpu, count) for count in sorted(set(ranks))]
    card = found[0][0]
    places = [world for _, world in found if world is not None]
    kept = int(card.total_bytes * margin)
    first = _as_it_is(program, places[0], card, kept, tell)
    if NO_GROUP in first.notes:
        return _spread(program, places, first, card, kept, tell)
    runs = [(places[0].world, first)]
    runs += [(w.world, _as_it_is(program, w, card, kept, tell)) for w in places[1:]]
    varied = _varied(program, places, card, kept, tell)
    rows = [
        way
        for ranks, found in runs
        for way in (
            parallel_variants.as_it_is(ranks, found),
            *(w for w in varied if w.ranks == ranks),
        )
    ]
    figures = figures_of(card, kept)
    return Worlds(
        title=program.title,
        card=figures,
        runs=tuple(runs),
        sentences=_sentences(runs, varied, figures),
        ways=tuple(rows) if varied else (),
    )


def _as_it_is(program: Program, world: VirtualWorld, card: Card, margin: int, tell: Tell) -> Probe:
    with EstimateProcess(of_world(program, world)) as apart:
        found: Probe = apart.call(probe, Request(card=card, margin=margin)).probe
    refuse(found, f"as rank 0 of {world.world}")
    tell(f"{world.world} ranks: {format_bytes(found.need)}")
    return found


def _varied(program: Program, places: Places, card: Card, margin: int, tell: Tell) -> list[Way]:
    """Run a distributed program under the variants of its own wrappers.

    Only variants that apply to it are returned.
    """
    found: list[Way] = []
    kinds = list(VARIANTS)
    for world in places:
        for kind in tuple(kinds):
            if kind is ShardedForDDP and WrappedZeroOptimizer not in kinds:
                kinds.remove(kind)  # there is no optimizer that it could replace
                continue
            (way,) = parallel_variants.run_variants(program, world, (kind,), card, margin, tell)
            if way.why_not == kind.not_applicable:
                kinds.remove(kind)
            else:
                found.append(way)
    return found


def _spread(  # noqa: PLR0913, PLR0917 - the question's parts
    program: Program, places: Places, first: Probe, card: Card, margin: int, tell: Tell
) -> Worlds:
    """Run a single-card program under every parallelism and world size."""
    tried = [
        parallel_variants.run_variants(program, world, PARALLELISMS, card, margin, tell)
        for world in places
    ]
    best = [way for found in tried if (way := parallel_variants.best(found)) is not None]
    chosen = next((way for way in best if way.probe is not None and way.probe.fits), None)
    found = [parallel_variants.as_it_is(1, first)]
    found += [dataclasses.replace(w, cheapest=w is chosen) for ways in tried for w in ways]
    figures = figures_of(card, margin)
    said = parallel_variants.sentences(program, found, figures)
    sent = any(way.probe is not None and way.probe.sent for way in found)
    more = (f"{_FIRST} ones; ZeRO-1 as the one that has most.", _SENT if sent else "")
    return Worlds(
        title=program.title,
        card=figures,
        runs=tuple((way.ranks, way.probe) for way in best if way.probe is not None),
        sentences=(*said, *filter(None, (*more, figures.share))),
        ways=tuple(found),
    )


def _sentences(
    runs: Sequence[tuple[int, Probe]], varied: Sequence[Way], card: CardFigures
) -> tuple[str, ...]:
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
    other = next((way for way in varied if way.probe is not None and way.probe.fits), None)
    if other is not None and (not fitting or other.ranks < fitting[0][0]):
        first += f" With {other.title} it fits on {other.ranks}."
    sent = any(found.sent for _, found in runs)
    return (first, f"{_FIRST} ones.", *filter(None, (_SENT if sent else "", card.share)))
