"""Run a program as one rank of a world, and describe that in answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbmem.api import device_selection
from nbmem.core.errors import UsageError
from nbmem.engine.choice import NO_RANKS, choose
from nbmem.estimates.card_choice import card_for
from nbmem.virtual import virtual_worlds
from nbmem.virtual.card_names import find_cards

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.estimates.programs.programs import Program
    from nbmem.report.estimate_results import Probe
    from nbmem.virtual.cards import Card
    from nbmem.virtual.virtual_worlds import VirtualWorld

NO_GROUP = (
    "The program never called init_process_group: each of its ranks is taken for a program of its "
    "own, which holds all."
)


def world_for(gpu: str | Card | None, ranks: int | None) -> tuple[Card, VirtualWorld | None]:
    """Return a card and the world of such cards; rank 0 is estimated.

    Args:
        gpu: Name of a card, or of a machine with several (`8xH100`); None as for `card_for`.
        ranks: Ranks of the world; None for a program of one process.

    Raises:
        UsageError: There is no such card, or no such world of it.
    """
    if ranks is None:
        return card_for(gpu), None
    cards = find_cards(gpu) if isinstance(gpu, str) and gpu.lower() != device_selection.AUTO else ()
    if len(set(cards)) > 1:
        raise UsageError(f"The ranks of a world have cards of one kind, and {gpu!r} has several.")
    card = cards[0] if cards else card_for(gpu)
    name = str(gpu) if len(cards) > 1 else card.key
    return card, virtual_worlds.layout(name, ranks)


def engine_of(wanted: str, world: VirtualWorld | None = None, *, many: bool = False) -> str:
    """Return the engine to use.

    Args:
        wanted: `auto`, `rules` or `torch`.
        world: The program's world; None for one process.
        many: Whether the question takes many runs.

    Raises:
        UsageError: There is no such engine, or it cannot answer.
    """
    return choose(wanted, None if world is None else NO_RANKS, many=many)


def of_world(program: Program, world: VirtualWorld | None) -> Program:
    """Return a program as rank 0 of a world; unchanged for None."""
    if world is None:
        return program
    title = f"{program.title}, rank 0 of {world.world}"
    return dataclasses.replace(program, world=world, title=title)


def rank_sentences(program: Program, probe: Probe) -> list[str]:
    """Return notes on which rank was run and on a missing process group."""
    if program.world is None:
        return []
    which = (
        f"It is of rank 0 of {program.world.world}, each with a card of its own: shards are handed "
        "out from the first rank on, so none has larger ones."
    )
    return [which, *(note for note in probe.notes if note == NO_GROUP)]


def communicated_bytes(program: Program, trace: Trace) -> Mapping[str, int]:
    """Return the bytes that a rank's last step communicated, by kind.

    Without steps, all of the program counts.
    """
    from nbmem.virtual.operator_model import communication_log

    if program.world is None or trace.session is None:
        return {}
    spans = trace.session.spans
    steps = [span for span in spans if span.kind == "phase" and span.step is not None]
    stepped = [span.step for span in steps if span.name in {"optimizer", "backward"}]
    last = [span for span in steps if stepped and span.step == stepped[-1]] or spans[:1]
    if not last:
        return {}
    return communication_log.bytes_by_kind(min(s.t0_ns for s in last), max(s.t1_ns for s in last))
