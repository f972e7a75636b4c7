"""Run a program under every parallelism that can spread it over cards."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.estimates.programs.source_edits import difference
from nbmem.estimates.questions.plan_verdict import AS_IT_IS
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.estimates.runs.subprocess_client import EstimateProcess
from nbmem.estimates.world_choice import of_world
from nbmem.report.estimate_results import CardFigures, Probe, Way

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.estimates.remedies.parallel import Parallel
    from nbmem.virtual.cards import Card
    from nbmem.virtual.virtual_worlds import VirtualWorld

_BATCH = (
    "Each card takes the program's batch, so N of them make a step of N batches: let each rank "
    "read its own part of the data (DistributedSampler), and find the learning rate anew."
)
_FIRST = re.compile(r"cuda:\d+")


def as_it_is(ranks: int, found: Probe) -> Way:
    """Return the row of a program as it is; titled for one card if alone."""
    title = AS_IT_IS if ranks > 1 else "on one card"
    return Way(ranks=ranks, key=AS_IT_IS, title=title, probe=found)


def run_variants(  # noqa: PLR0913, PLR0917 - the question's parts
    program: Program,
    world: VirtualWorld,
    kinds: Sequence[type[Parallel]],
    card: Card,
    margin: int,
    tell: Callable[[str], None],
) -> list[Way]:
    """Run a program under each parallelism, as the rank that needs most.

    Args:
        program: As it is.
        world: How many ranks, and how many of them in a machine.
        kinds: The parallelisms.
        card: Each rank's.
        margin: Bytes of it to keep free.
        tell: Called with a line of text after every run.
    """
    found = []
    with EstimateProcess(of_world(program, world)) as apart:
        for kind in kinds:
            way = Way(ranks=world.world, key=kind.key, title=kind.title, price=kind.price)
            why_not = kind.unfit(world.world, world.local)
            if why_not is not None:
                found.append(dataclasses.replace(way, why_not=why_not))
                continue
            request = Request(card=card, margin=margin, remedies=(kind.key,))
            reply = apart.call(probe, request)
            if reply.fullest:
                reply = apart.call(probe, dataclasses.replace(request, rank=reply.fullest))
            failure = reply.probe.failure
            why_not = reply.refused
            if failure is not None and failure.kind == "other":
                why_not = why_not or f"The program fails under it: {failure}."
            if why_not is None:
                tell(f"{world.world} ranks, {reply.called}: {format_bytes(reply.probe.need)}")
                way = dataclasses.replace(
                    way,
                    title=reply.called,
                    price=reply.price,
                    code=reply.code,
                    diff="" if not reply.changed else difference(program.source, reply.changed),
                    probe=reply.probe,
                )
            found.append(dataclasses.replace(way, why_not=why_not))
    return found


def best(found: Sequence[Way]) -> Way | None:
    """Return the first parallelism that fits, else the smallest.

    All are of one world. None if none ran.
    """
    ran = [way for way in found if way.probe is not None]
    fitting = [way for way in ran if way.probe is not None and way.probe.fits]
    least = min(ran, key=lambda way: 0 if way.probe is None else way.probe.wanted, default=None)
    return next(iter(fitting), least)


def sentences(program: Program, found: Sequence[Way], card: CardFigures) -> list[str]:
    """Return the verdict over all parallelisms, and the notes on it."""
    limit = f"{format_bytes(card.total - card.margin)} on {with_article(card.name)}"
    first, *others = found
    assert first.probe is not None  # noqa: S101 - it ran
    chosen = next((way for way in others if way.cheapest), None)
    alone = format_bytes(first.probe.need)
    enough = first.probe.fits
    said = [f"One of these cards trains it: it takes {alone} of {limit}."] if enough else []
    if chosen is not None and chosen.probe is not None:
        need = format_bytes(chosen.probe.need)
        best_way = f"{chosen.ranks}, with {chosen.title}"
        if enough:
            said.append(f"On more of them, the first way that fits: {best_way} ({need} each).")
        else:
            said.append(f"The fewest of these cards that train it: {best_way} ({need} of {limit}).")
    else:
        ran = [way.probe.wanted for way in others if way.probe is not None]
        least = f": it takes {format_bytes(min(ran))} at least, and there are" if ran else ","
        said.append(f"It fits in none of these worlds in any way{least} {limit}.")
    if not enough:
        said.append(f"On one card it would take {alone}.")
    said.append(_BATCH)
    if names_a_card(program.source):
        said.append(
            'The program names the first card ("cuda:0"): all ranks of a machine would share it. '
            'Write "cuda", which is the card of torch.cuda.set_device.'
        )
    return said


def names_a_card(source: str) -> bool:
    """Return whether a program's code writes "cuda:0" or .cuda(0).

    Comments and help texts do not count.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _FIRST.fullmatch(node.value):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            first = node.args[0] if node.args else None
            number = isinstance(first, ast.Constant) and type(first.value) is int
            if node.func.attr == "cuda" and number:
                return True
    return False
