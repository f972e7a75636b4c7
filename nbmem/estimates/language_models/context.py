"""Find the longest context that fits on a card, for several batches.

A length is run only to know its requests. Each request's size is a polynomial of the length, so the
simulated allocator decides the lengths between.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.estimates.card_choice import card_for, figures_of
from nbmem.estimates.language_models.measurement import (
    Measured,
    ModelStep,
    measure,
    positions_of,
)
from nbmem.estimates.language_models.models import find_model
from nbmem.estimates.language_models.program import write_program
from nbmem.estimates.language_models.question import PROGRAM, missing_note
from nbmem.estimates.language_models.settings import for_card
from nbmem.estimates.programs.programs import Program
from nbmem.estimates.questions.search.scaled_runs import ScaledRuns
from nbmem.estimates.runs.probe_run import Reply
from nbmem.estimates.runs.subprocess_client import EstimateProcess
from nbmem.report.estimate_results import Probe
from nbmem.report.language_results import ContextFit, ContextRow, MemoryPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.estimates.language_models.settings import Settings
    from nbmem.virtual.cards import Card

ROUNDING = Category.ROUNDING.label
STEP = 64
"""Tokens between two lengths: a multiple of what attention's kernels pad to."""
FIRST = 2048
"""Tokens of a batch in the first run; the second has twice as many."""
LONGEST = 1 << 22
"""Tokens beyond which no length is tried."""
BELOW = 4
"""Lengths right below an answer that must fit, too: with a cache one may fit by luck."""
ROUNDS = 4
"""Runs that may correct an answer."""
SHORTER = 0.75
"""Part of a length that another has at most, for a line through both."""
CONSTANT = 0.5
"""Bytes a token below which a part does not grow."""


class _ContextSearch:
    """The search for the longest context with one batch.

    Args:
        run: Runs a length and returns what it takes.
        card: The card.
        margin: Bytes of it to keep free.
        highest: Positions of the model, or None.
    """

    def __init__(
        self, run: Callable[[int], Measured], card: Card, margin: int, highest: int | None
    ) -> None:
        self._run, self._margin, self._highest = run, margin, highest
        self.scaled = ScaledRuns(card)
        self.found: dict[int, Measured] = {}

    def measure(self, seq: int) -> None:
        """Run a length, once."""
        if seq not in self.found:
            found = self.found[seq] = self._run(seq)
            probe = Probe(
                value=seq, fits=True, allocated=found.allocated, reserved=found.reserved,
                process=found.process, wanted=found.process, phase=found.phase,
            )  # fmt: skip
            self.scaled.add(seq, Reply(probe=probe, requests=found.requests))

    def longest(self, batch: int) -> int | None:
        """Return the longest length that fits; None if the shortest does not."""
        first = max(FIRST // batch // STEP, 1) * STEP
        if self._highest is not None:
            first = min(first, max(self._highest // 2 // STEP, 1) * STEP)
        longest = (self._highest or LONGEST) // STEP * STEP
        for times in (1, 2, 3):  # two that request alike; a first run may fill a library's caches
            if self.scaled.replay(3 * first, self._margin) is None:
                self.measure(max(min(times * first, longest), STEP))
        answer = self._replayed()
        for _ in range(ROUNDS):
            near = STEP if answer is None else answer
            if near in self.found:
                break
            self.measure(near)
            if (corrected := self._replayed()) == answer:
                break
            answer = corrected
        return answer

    def row(self, batch: int) -> ContextRow:
        """Search for the longest length with a batch."""
        seq, highest = self.longest(batch), self._highest
        return ContextRow(
            batch=batch,
            seq=seq,
            process=None if seq is None else self.process(seq),
            limited=highest is not None and seq is not None and seq + STEP > highest,
        )

    def process(self, seq: int) -> int | None:
        """Return the peak bytes of the process on the card; None if not known."""
        found = self.scaled.replay(seq, self._margin)
        return None if found is None else found.reserved + found.outside

    def _fits(self, seq: int) -> bool:
        return self.scaled.fits(seq, self._margin) is not False

    def _replayed(self) -> int | None:
        """Return the longest length that fits by the runs so far.

        Those right below it fit, too.
        """
        if not self._fits(STEP):
            return None
        low, high = 1, 2
        most = (self._highest or LONGEST) // STEP
        while high <= most and self._fits(high * STEP):
            low, high = high, 2 * high
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle * STEP) else (low, middle)
        below = 1
        while below <= BELOW and low - below >= 1:
            if self._fits((low - below) * STEP):
                below += 1
            else:
                low, below = low - below - 1, 1
        return low * STEP if low else None


def fit_context(
    settings: Settings,
    gpu: str | None,
    batches: Sequence[int],
    *,
    margin: float,
    tell: Callable[[str], None],
) -> ContextFit:
    """Find the longest context of a model on a card, for each batch.

    Args:
        settings: The model, and what is done with it; `seq` and `batch` are searched.
        gpu: Name of a card; None for the one in use, else a virtual H100.
        batches: Sequences at a time.
        margin: Part of the card to keep free.
        tell: Called with a line of text after every run.

    Raises:
        NbmemError: The model is not known or cannot be built, or there is no such card.
    """
    if not batches or min(batches) < 1:
        raise UsageError("A batch is at least 1: --batch 1,2,4,8.")
    model, card = find_model(settings.model), card_for(gpu)
    settings = for_card(settings, card)
    kept = int(card.total_bytes * margin)
    with EstimateProcess(Program(title=model.title, source="", file=PROGRAM)) as apart:
        highest = apart.call(positions_of, model.code)

        def run(batch: int, seq: int) -> Measured:
            written = write_program(model, replace(settings, seq=seq, batch=batch))
            step = ModelStep(source=written.run, config=model.code, card=card, tokens=seq * batch)
            found: Measured = apart.call(measure, step)
            tell(f"batch {batch}, {seq:,} tokens: {format_bytes(found.process)}")
            return found

        searches = [_ContextSearch(partial(run, one), card, kept, highest) for one in batches]
        rows = [one.row(batch) for one, batch in zip(searches, batches, strict=True)]
    fixed, per_token = _lines(searches[0], batches[0], rows[0].seq)
    shown = write_program(model, replace(settings, batch=batches[0], seq=rows[0].seq or STEP))
    return ContextFit(
        title=f"{settings.words} of {model.title}",
        model=model.title,
        method=settings.method,
        card=figures_of(card, kept),
        step=STEP,
        rows=tuple(rows),
        fixed=fixed,
        per_token=per_token,
        runs=sum(len(one.found) for one in searches),
        replayed=sum(len(one.scaled.replayed) for one in searches),
        program=shown.source,
        sentences=(model.origin, *missing_note(shown)),
    )


def _lines(
    search: _ContextSearch, batch: int, answer: int | None
) -> tuple[tuple[MemoryPart, ...], tuple[MemoryPart, ...]]:
    """Return what does not grow with a sequence, and what a token takes.

    They are of the straight line through the run nearest to the answer and one that is shorter.
    What blocks are rounded up by is on no line.
    """
    runs = sorted(search.found)
    high = max((seq for seq in runs if answer is None or seq <= answer), default=runs[-1])
    low = max((seq for seq in runs if seq <= high * SHORTER), default=runs[0])
    if low == high:
        return search.found[high].parts, ()
    first, last = (
        {part.name: part.size for part in search.found[seq].parts if part.name != ROUNDING}
        for seq in (low, high)
    )
    fixed, per_token = [], []
    for name, size in last.items():
        each = (size - first.get(name, 0)) / (high - low) / batch
        always = size - each * high * batch
        if abs(each) >= CONSTANT:
            per_token.append(MemoryPart(name=name, size=round(each)))
        if round(always) > 0:
            fixed.append(MemoryPart(name=name, size=round(always)))
    return tuple(fixed), tuple(per_token)
