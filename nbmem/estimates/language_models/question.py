"""Ask what a language model takes under a method, before there is code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.api.common_cards import COMMON
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_parts import ADAPTERS
from nbmem.core.units import format_bytes
from nbmem.estimates.card_choice import card_for, figures_of, is_all
from nbmem.estimates.language_models.measurement import (
    Measured,
    ModelStep,
    measure,
    positions_of,
    run_on_card,
)
from nbmem.estimates.language_models.models import KnownModel, find_model
from nbmem.estimates.language_models.program import WrittenProgram, write_program
from nbmem.estimates.language_models.settings import Settings, check_length, for_card
from nbmem.estimates.programs.programs import Program
from nbmem.estimates.questions.card_table import decided_by_run
from nbmem.estimates.runs.probe_run import Request
from nbmem.estimates.runs.subprocess_client import EstimateProcess
from nbmem.report.language_results import ModelEstimate
from nbmem.virtual.cards import CARDS, Card

if TYPE_CHECKING:
    from nbmem.report.estimate_results import Probe

PROGRAM = "<program>"
"""Name of the program's file in an error."""
WEIGHTS = Category.WEIGHTS.label
_ADAPTER_BYTES = 4
"""peft trains adapters in float32, whatever the type of the weights."""


def estimate_model(
    settings: Settings,
    gpu: str | None,
    *,
    margin: float,
    tell: Callable[[str], None],
) -> ModelEstimate:
    """Run a language model's program on a card, and decide other cards.

    The recorded requests decide most cards. One is run again where that does not suffice: near the
    edge, and where its kernels of attention are others.

    Args:
        settings: The model, and what is done with it.
        gpu: Name of a card; `all` for every card of the table; None for the one in use, else a
            virtual H100.
        margin: Part of a card to keep free.
        tell: Called with a line of text after every run.

    Raises:
        NbmemError: The model is not known or cannot be built, or there is no such card.
    """
    every = is_all(gpu)
    card = card_for(None if every else gpu)
    model = find_model(settings.model)
    write_program(model, for_card(settings, card))  # refused before a process is started
    with EstimateProcess(Program(title=model.title, source="", file=PROGRAM)) as apart:
        settings = check_length(settings, apart.call(positions_of, model.code))
        written = write_program(model, for_card(settings, card))
        step = ModelStep(
            source=written.run,
            config=model.code,
            card=card,
            tokens=settings.batch * settings.seq,
            others=CARDS if every else tuple({one.key: one for one in (card, *common())}.values()),
            margin=margin,
        )
        found = apart.call(measure, step)
        tell(f"{card.key}: {format_bytes(found.process)}")

        def run(other: Card) -> Probe:
            source = write_program(model, for_card(settings, other)).run
            request = Request(card=other, margin=int(other.total_bytes * margin))
            probe: Probe = apart.call(run_on_card, source, request)
            tell(f"{other.key}: {format_bytes(probe.need)}")
            return probe

        decided = tuple(
            decided_by_run(one, run) if one.fits is None else one for one in found.cards
        )
    own = next((one for one in decided if one.card == card.key), None)
    return replace(
        _answer(model, settings, step, found),
        fits=None if own is None or own.fits is None else own.fits and own.margin,
        cards=decided,
        program=written.source,
        sentences=(model.origin, *_notes(settings, found, written)),
    )


def _answer(
    model: KnownModel, settings: Settings, step: ModelStep, found: Measured
) -> ModelEstimate:
    """Build the answer of a run, without cards and program."""
    card = step.card
    return ModelEstimate(
        title=f"{settings.words} of {model.title}",
        model=model.title,
        method=settings.method,
        seq=settings.seq,
        batch=settings.batch,
        parameters=found.sizes.parameters,
        trained=_trained(settings, found),
        card=figures_of(card, int(card.total_bytes * step.margin)),
        fits=None,
        phase=found.phase,
        parts=found.parts,
        allocated=found.allocated,
        reserved=found.reserved,
        process=found.process,
        cards=found.cards,
        program=step.source,
        sentences=(),
    )


def common() -> tuple[Card, ...]:
    """Return the cards that people have."""
    return tuple(map(card_for, COMMON))


def _trained(settings: Settings, found: Measured) -> int:
    """Return the number of parameters that are trained."""
    if not settings.trains:
        return 0
    if not settings.adapts:
        return found.sizes.parameters
    return sum(part.size for part in found.parts if part.name == ADAPTERS) // _ADAPTER_BYTES


def _notes(settings: Settings, found: Measured, written: WrittenProgram) -> Iterator[str]:
    """Yield what to know about an estimate."""
    yield from missing_note(written)
    if settings.quantized:
        sizes = {part.name: part.size for part in found.parts}
        weights = sum(size for name, size in sizes.items() if name.startswith(WEIGHTS))
        packed = sizes.get(f"{WEIGHTS}, 4-bit", 0)
        if packed < weights / 2:
            yield (
                f"{format_bytes(weights - packed)} of the {format_bytes(weights)} of weights are "
                "not in 4 bits: embeddings, the output layer, norms, and what is no linear layer."
            )


def missing_note(written: WrittenProgram) -> Iterator[str]:
    """Yield a sentence on packages that are not installed, if there are any."""
    if written.missing:
        names = " and ".join(written.missing)
        yield (
            f"Run without {names}, which {'is' if len(written.missing) == 1 else 'are'} not "
            "installed: layers of nbmem hold the same tensors."
        )
