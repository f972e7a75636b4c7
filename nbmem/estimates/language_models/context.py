"""Find the longest context that fits on a card, for several batches.

A length is run only to know its requests. Each request's size is a polynomial of the length, so the
simulated allocator decides the lengths between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_parts import LOGITS
from nbmem.core.units import format_bytes
from nbmem.estimates.card_choice import card_for, figures_of
from nbmem.estimates.language_models.measurement import (
    Measured,
    ModelStep,
    measure,
    measure_shape,
    positions_of,
)
from nbmem.estimates.language_models.models import find_model
from nbmem.estimates.language_models.program import write_program
from nbmem.estimates.language_models.question import PROGRAM, missing_note
from nbmem.estimates.language_models.settings import Settings, for_card
from nbmem.estimates.programs.programs import Program
from nbmem.estimates.programs.token_shapes import NEW, TokenShapes
from nbmem.estimates.questions.search.scaled_runs import ScaledRuns
from nbmem.estimates.runs.probe_run import Reply
from nbmem.estimates.runs.subprocess_client import EstimateProcess
from nbmem.report.estimate_results import CardFigures, Probe
from nbmem.report.language_results import ContextFit, ContextRow, MemoryPart
from nbmem.virtual.warnings import COMPILE_LATER

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

ROUNDING, WORKSPACE = Category.ROUNDING.label, Category.WORKSPACE.label
BATCHES = (1, 2, 4, 8)
"""Batches for which the longest context is searched, if none is named."""
STEP = 64
"""Tokens between two lengths: a multiple of what attention's kernels pad to."""
FIRST = 2048
"""Tokens of a batch in the first run; the second has twice as many."""
LONGEST = 1 << 22
"""Tokens beyond which no length is tried."""
BELOW = 4
"""Lengths right below an answer that must fit, too: with a cache one may fit by luck."""
ROUNDS = 8
"""Runs that may correct an answer."""
REACH = 4
"""Times the longest run up to which a length is foretold."""
SHORTER = 0.75
"""Part of a length that another has at most, for a line through both."""
CONSTANT = 0.5
"""Bytes a token below which a part does not grow."""
PAIRS = 0.02
"""Part of all bytes from which what grows with the square of the length is shown apart."""
PASSING = "activations, logits and temporaries"
_MADE = frozenset(
    {
        LOGITS,
        Category.ACTIVATIONS.label,
        Category.OUTPUT_GRADIENTS.label,
        Category.TEMPORARIES.label,
    }
)


class _ContextSearch:
    """The search for the longest context with one batch.

    Attributes:
        failure: A length with which the program fails for another reason than memory, and why.

    Args:
        run: Runs a length and returns what it takes.
        card: The card.
        margin: Bytes of it to keep free.
        highest: Positions of the model, or None.
        first: Tokens of the first run; None for some that suit a batch.
    """

    def __init__(
        self,
        run: Callable[[int], Measured],
        card: Card,
        margin: int,
        highest: int | None,
        first: int | None = None,
    ) -> None:
        self._run, self._margin, self._highest, self._first = run, margin, highest, first
        self.scaled = ScaledRuns(card)
        self.found: dict[int, Measured] = {}
        self.failure = ""

    def measure(self, seq: int) -> None:
        """Run a length, once; one that fails bounds the lengths that are tried."""
        if seq not in self.found:
            try:
                found = self.found[seq] = self._run(seq)
            except NbmemError as err:
                shorter = max((one for one in self.found if one < seq), default=0)
                if not shorter or seq - shorter <= STEP:
                    raise
                self._highest = (shorter + seq) // 2
                self.failure = f"{seq:,} tokens: {err}"
                return
            probe = Probe(
                value=seq, fits=True, allocated=found.allocated, reserved=found.reserved,
                process=found.process, wanted=found.process, phase=found.phase,
            )  # fmt: skip
            self.scaled.add(seq, Reply(probe=probe, requests=found.requests))

    def longest(self, batch: int) -> int | None:
        """Return the longest length that fits; None if the shortest does not."""
        first = max((self._first or FIRST // batch) // STEP, 1) * STEP
        if self._highest is not None:
            first = min(first, max(self._highest // 2 // STEP, 1) * STEP)
        longest = (self._highest or LONGEST) // STEP * STEP
        for times in (1, 2, 3):  # two that request alike; a first run may fill a library's caches
            if self.scaled.replay(3 * first, self._margin) is None:
                self.measure(max(min(times * first, longest), STEP))
        answer = self._replayed()
        for _ in range(ROUNDS):
            near = min(STEP if answer is None else answer, REACH * max(self.found))
            if near in self.found:
                break
            self.measure(near)
            answer = self._replayed()
        return answer

    def row(self, batch: int) -> ContextRow:
        """Search for the longest length with a batch."""
        seq, highest = self.longest(batch), self._highest
        return ContextRow(
            batch=batch,
            seq=seq,
            process=None if seq is None else self.process(seq),
            limited=not self.failure and highest is not None and (seq or 0) + STEP > highest,
        )

    def process(self, seq: int) -> int | None:
        """Return the peak bytes of the process on the card; None if not known."""
        found = self.scaled.replay(seq, self._margin)
        return None if found is None else found.reserved + found.outside

    def _fits(self, seq: int) -> bool:
        """Return whether a length fits; it is run if the runs so far do not say."""
        if self._highest is not None and seq > self._highest:
            return False
        if self.scaled.fits(seq, self._margin) is None:
            self.measure(seq)
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
            tell(_run_line(batch, seq, found))
            return found

        searches = [_ContextSearch(partial(run, one), card, kept, highest) for one in batches]
        rows = [one.row(batch) for one, batch in zip(searches, batches, strict=True)]
    shown = write_program(model, replace(settings, batch=batches[0], seq=rows[0].seq or STEP))
    answer = _answer(f"{settings.words} of {model.title}", figures_of(card, kept), searches, rows)
    return replace(
        answer,
        model=model.title,
        method=settings.method,
        program=shown.source,
        sentences=(model.origin, *missing_note(shown)),
    )


def fit_own_context(  # noqa: PLR0913 - the question's parts
    program: Program,
    gpu: str | None,
    batches: Sequence[int] | None,
    *,
    bind: Callable[[int], Program],
    margin: float,
    tell: Callable[[str], None],
    show: Callable[[ContextFit, str], None],
) -> ContextFit:
    """Find the longest context of the user's own program, for each batch.

    Args:
        program: A cell or a script that trains a language model, or generates with one.
        gpu: Name of a card; None for the one in use, else a virtual H100.
        batches: Sequences at a time; None for its own and the usual ones.
        bind: Returns the program with the variable that has this length as its value, if any.
        margin: Part of the card to keep free.
        tell: Called with a line of text after every run.
        show: Called with the answer so far, and a description of the work that is left.

    Raises:
        NbmemError: It fails, calls no model with tokens, or there is no such card.
    """
    card = card_for(gpu)
    kept = int(card.total_bytes * margin)
    with EstimateProcess(program) as apart:
        own, first = apart.call(measure_shape, card, None, None)
    if own.own_seq is None:
        raise UsageError(NO_TOKENS)
    tell(_run_line(own.own_batch, own.own_seq, first))
    listed = batches or tuple(dict.fromkeys((own.own_batch, *BATCHES)))
    searches, rows = [], []
    with EstimateProcess(bind(own.own_seq)) as apart:

        def run(batch: int, seq: int) -> Measured:
            found: Measured = apart.call(measure_shape, card, batch, seq)[1]
            tell(_run_line(batch, seq, found))
            return found

        sentences = [_own_shape(own), *([COMPILE_LATER] if first.eager else [])]
        for batch in listed:
            searches.append(
                _ContextSearch(partial(run, batch), card, kept, own.positions, own.own_seq)
            )
            try:
                rows.append(searches[-1].row(batch))
            except NbmemError as err:  # a program may want rows in pairs, as DPO does
                searches.pop()
                sentences.append(f"With {batch} at a time: {err}")
                continue
            if searches[-1].failure:
                sentences.append(f"{searches[-1].failure} Longer ones were not all tried.")
            answer = _answer(program.title, figures_of(card, kept), searches, rows)
            answer = replace(answer, sentences=tuple(sentences))
            show(answer, f"{len(rows)} of {len(listed)} batches")
    if not rows:
        raise UsageError(" ".join(sentences[1:]))
    return replace(answer, sentences=tuple(sentences))


NO_TOKENS = (
    "No model in it was called with token ids (whole numbers in rows of two or more), so there is "
    "no context to vary. If its length has a name, `length = 512`, ask for that: fit length."
)


def _run_line(batch: int, seq: int, found: Measured) -> str:
    return f"batch {batch}, {seq:,} tokens: {format_bytes(found.process)}"


def _own_shape(own: TokenShapes) -> str:
    said = f"As it is, its model gets {own.own_batch} x {own.own_seq:,} tokens"
    if own.new > NEW:
        return (
            f"{said}, {own.new:,} of them generated; here {NEW} are generated, and the prompt is "
            "longer by the others."
        )
    return f"{said}, {own.new} of them generated." if own.new else f"{said}."


def _answer(
    title: str, card: CardFigures, searches: Sequence[_ContextSearch], rows: Sequence[ContextRow]
) -> ContextFit:
    """Build the answer of searches, the first of which has the lines."""
    lines = _lines(searches[0], rows[0].batch, rows[0].seq)
    return ContextFit(
        title=title,
        card=card,
        step=STEP,
        rows=tuple(rows),
        fixed=lines.fixed,
        per_token=lines.per_token,
        per_pair=lines.per_pair,
        runs=sum(len(one.found) for one in searches),
        replayed=sum(len(one.scaled.replayed) for one in searches),
    )


def _lines(search: _ContextSearch, batch: int, answer: int | None) -> _Lines:
    """Return the constant bytes, and those of a token and of a pair.

    They are of the polynomial through the run nearest to the answer and two that are shorter and
    have their peak in the same phase; with one of them, of the line through both. What blocks are
    rounded up by is on none.
    """
    runs = sorted(search.found)
    high = max((seq for seq in runs if answer is None or seq <= answer), default=runs[-1])
    phase = search.found[high].phase
    alike = [s for s in runs if s <= high * SHORTER and search.found[s].phase == phase]
    points = [*alike[-2:], high]
    if len(points) == 1:
        return _Lines(search.found[high].parts, (), ())
    parts = [_by_name(search.found[seq].parts) for seq in points]
    if any(parts[-2].get(name, 0) > parts[-1].get(name, 0) for name in _MADE):
        parts = [_joined(one) for one in parts]  # a loss in parts of a fixed size
    fixed, per_token, per_pair = [], [], []
    for name, size in parts[-1].items():
        sizes = [size if name == WORKSPACE else one.get(name, 0) for one in parts]
        pair = _square(points, sizes)
        if abs(pair) * high**2 < PAIRS * sum(parts[-1].values()) or not round(pair / batch):
            pair = 0
        else:
            per_pair.append(MemoryPart(name=name, size=round(pair / batch)))
        low, first = points[-2], sizes[-2] - pair * points[-2] ** 2
        each = (size - pair * high**2 - first) / (high - low)
        always = first - each * low
        if abs(each) >= CONSTANT * batch:
            per_token.append(MemoryPart(name=name, size=round(each / batch)))
        if round(always) > 0:
            fixed.append(MemoryPart(name=name, size=round(always)))
    return _Lines(tuple(fixed), tuple(per_token), tuple(per_pair))


class _Lines(NamedTuple):
    """Bytes whatever the length, of a token, and of a pair of tokens, by part."""

    fixed: tuple[MemoryPart, ...]
    per_token: tuple[MemoryPart, ...]
    per_pair: tuple[MemoryPart, ...]


def _by_name(parts: Sequence[MemoryPart]) -> dict[str, int]:
    return {part.name: part.size for part in parts if part.name != ROUNDING}


def _joined(parts: dict[str, int]) -> dict[str, int]:
    """Add up the parts that forward and backward make."""
    sums: dict[str, int] = {}
    for name, size in parts.items():
        joined = PASSING if name in _MADE else name
        sums[joined] = sums.get(joined, 0) + size
    return sums


def _square(points: Sequence[int], sizes: Sequence[int]) -> float:
    """Return the factor of the square in the polynomial through three points."""
    if len(points) < 3:
        return 0
    (a, b, c), (x, y, z) = points, sizes
    return ((z - y) / (c - b) - (y - x) / (b - a)) / (c - a)
