"""Find the largest value of a variable that fits on the card."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.estimates.card_choice import figures_of
from nbmem.estimates.questions import fit_sentences, predicted_savings
from nbmem.estimates.questions.search import memory_growth, time_left
from nbmem.estimates.questions.search.fit_band import LOOSE, Band, BandSearch
from nbmem.estimates.questions.search.prober import Prober
from nbmem.estimates.questions.search.value_search import Search
from nbmem.estimates.remedies.batches import Expandable
from nbmem.estimates.runs.probe_run import probe, refuse
from nbmem.report.estimate_results import MARGIN, Fit, Probe
from nbmem.virtual.warnings import COMPILE_LATER

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.estimates.questions.search.prober import Ask, Tell
    from nbmem.virtual.cards import Card

    Show = Callable[[Fit, str], None]

MOST_MARGIN = 0.1
"""A larger part of the card is a target, and no margin: values need not fit with less of it."""
PARTS = (0.25, 0.5, 0.75)
"""Parts of the answer: values there are run, too, so that fitted lines have points far apart."""
EXPANDABLE_RUNS = 3
"""Runs with expandable segments at the end of a search: one, and two where it does not fit."""
REACH = 0.12
"""Part of the answer within which an existing run replaces a run of such a value."""


def new_search(prober: Prober, *, low: int = 1, high: int | None = None, step: int = 1) -> Search:
    """Return a search for the largest value that fits, still to be run.

    Args:
        prober: Runs the values.
        low: The smallest value.
        high: The largest; None without a bound.
        step: Distance of the values that are searched.
    """
    return Search(
        test=prober.verdict,
        room=prober.card.total_bytes - prober.margin,
        low=low,
        high=high,
        step=step,
        loose=LOOSE,
        least=prober.least,
        requested=prober.scaled.requested,
    )


def run_search(prober: Prober, search: Search, own: int) -> None:
    """Search roughly, from the program's own value.

    The answer may be too small by a part, `LOOSE`, until `find_band` makes it exact.
    """
    first = prober(search.nearest(own))
    if first.ran:
        search.first_guess = predicted_savings.largest(first, search.room)
    search.run(own)


def find_band(
    prober: Prober,
    search: Search,
    show: Callable[[Band], None] = lambda _band: None,
    conf: str | None = None,
) -> Band:
    """Find the values that always fit, and those that fit by luck.

    Args:
        prober: Runs the values.
        search: A search that was run; it gets the exact answer.
        show: Called with the band so far.
        conf: Allocator settings that may remove the luck; None to try none.
    """
    kept = prober.margin
    margins = [kept]
    if kept <= MOST_MARGIN * prober.card.total_bytes:  # it may be free, or not
        margins = sorted({kept, kept // 2, 0}, reverse=True)
    return BandSearch(search, prober.scaled, margins, show).find(conf)


def fit(  # noqa: PLR0913 - the question's parts
    program: Program,
    ask: Ask,
    card: Card,
    *,
    margin: float = MARGIN,
    between: tuple[int, int] | None = None,
    step: int = 1,
    variable: str | None = None,
    remedies: tuple[str, ...] = (),
    tell: Tell = lambda _text: None,
    show: Show = lambda _fit, _left: None,
) -> Fit:
    """Search for the largest value of the program's variable that fits.

    Compiled functions run eagerly first, which is quick. The search is then repeated from that
    answer with compiled plans, and its answer replaces the first.

    Args:
        program: With a variable.
        ask: Runs a request and returns the reply.
        card: On which card.
        margin: Part of the card to keep free.
        between: Smallest and largest value; None for 1 and no bound.
        step: Distance of the values that are searched.
        variable: The variable's name in the answer; None for its own name.
        remedies: Keys of remedies under which it runs.
        tell: Called with a line of text after every run.
        show: Called with the answer so far, and with a description of the work that is left.

    Raises:
        UsageError: The range or the program cannot be used.
    """
    bound = program.binding
    assert bound is not None  # noqa: S101 - the callers bind one
    low, high = between or (min(step, max(bound.value, 1)), None)
    if low < 0 or step < 1 or (high is not None and high < low):
        raise UsageError(f"There is nothing between {low} and {high} in steps of {step}.")
    kept = int(card.total_bytes * margin)

    def begin(*, compiled: bool) -> _FitSearch:
        prober = Prober(ask, card, kept, tell, remedies, compiled=compiled)
        search = new_search(prober, low=low, high=high, step=step)
        return _FitSearch(program, variable or bound.name, prober, search, show)

    eager = begin(compiled=False)
    eager.run(bound.value)
    if not any(COMPILE_LATER in p.notes for p in eager.probes):
        return eager.answer()
    show(eager.answer(), "compiled, it is still to be run")
    planned = begin(compiled=True)
    planned.eager_best = eager.best
    why = planned.run_again(bound.value if eager.best is None else eager.best)
    return planned.answer() if why is None else eager.answer(why)


class _FitSearch:
    """A search and the answer that it builds.

    Attributes:
        eager_best: What the search before found, in which compiled functions ran eagerly.
        band: The values that fit; what is known so far while it is searched.
    """

    def __init__(
        self, program: Program, name: str, prober: Prober, search: Search, show: Show
    ) -> None:
        self._program, self._name = program, name
        self._prober, self._search, self._show = prober, search, show
        self._card = figures_of(prober.card, prober.margin)
        self.eager_best: int | None = None
        self.band: Band | None = None
        self._expected: time_left.RunCount | None = None
        self._since = 0
        prober.on_probe, prober.left = self._show_partial, self._time_left

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Every run, sorted by value."""
        known = self._prober.probes
        return tuple(known[value] for value in sorted(known))

    @property
    def best(self) -> int | None:
        """The largest value that fits, or None."""
        return None if self.band is None else self.band.best

    def run(self, own: int) -> None:
        """Search from the program's own value.

        Raises:
            UsageError: It does not run, for another reason than memory.
        """
        if self._search.has(own):
            refuse(self._prober(own), f"as it is, with {self._name} = {own}")
        run_search(self._prober, self._search, own)
        _refuse_other(self._prober.probes, own)
        self._complete()

    def run_again(self, start: int) -> str | None:
        """Search from another search's result; return the failure or None.

        The failure is the reason why the first value does not run in this mode.
        """
        first = self._prober(self._search.nearest(start))
        if not first.ran:
            return str(first.failure)
        run_search(self._prober, self._search, start)
        self._complete()
        return None

    def _complete(self) -> None:
        """Find the band, what widens it, and points for the lines."""
        self._expect(time_left.AFTER_ROUGH)
        self.band = find_band(self._prober, self._search, self._keep_band, Expandable.conf)
        self._expect(self._last_runs(self.band.expandable is not None))
        _fill(self._search, self._prober)
        _run_expandable(self._prober, self._search, self.band)

    def _keep_band(self, band: Band) -> None:
        self.band = band
        last = self._last_runs(band.safe is not None and band.safe != band.best)
        self._expect(last.plus(band.unchecked, band.unchecked + time_left.SURPRISES))

    def _expect(self, runs: time_left.RunCount) -> None:
        """Note how many runs follow from here on."""
        self._expected, self._since = runs, len(self._prober.ended)

    def _last_runs(self, luck: bool) -> time_left.RunCount:  # noqa: FBT001 - whether settings may remove it
        """Count the runs that follow the band: for the lines, and of settings."""
        lines = len(_points(self._search, self._prober))
        return time_left.RunCount(lines, lines + EXPANDABLE_RUNS * luck)

    def _time_left(self) -> str:
        """Format the time that the rest takes; empty where it is not known."""
        if not self._prober.compiled and any(COMPILE_LATER in p.notes for p in self.probes):
            return ""  # all of it is searched once more, with plans
        ended = self._prober.ended
        if self._expected is None:
            left = time_left.of_rough_search(self._search, self.probes)
        else:
            left = self._expected.after(len(ended) - self._since)
        return time_left.time_text(left, ended)

    def _show_partial(self) -> None:
        runs = self.probes
        if any(p.ran for p in runs):
            said = fit_sentences.partial_sentences(
                self._name, self._search, runs, self._card, self.band
            )
            self._show(self._answer(said, ()), fit_sentences.progress_text(runs, self._time_left()))

    def answer(self, why: str | None = None) -> Fit:
        """Build the answer of a finished search.

        Args:
            why: Compiled functions could not be run but eagerly, and why; None where they were.
        """
        assert self.band is not None  # noqa: S101 - it was searched
        line = memory_growth.same_peak(self.probes, self._search.best)
        said = fit_sentences.final_sentences(
            self._name, self._search, self.probes, self._card, self._program, line, self.band
        )
        eager_best = self.eager_best
        said[2:2] = fit_sentences.of_compiled(self._name, self.probes, eager_best, why)
        return self._answer(said, line)

    def _answer(self, sentences: Sequence[str], line: Sequence[Probe]) -> Fit:
        search, line = self._search, line or memory_growth.same_peak(self.probes, self._search.best)
        known = [p.value for p in self.probes if p.fits and p.value is not None]
        largest = max(known, default=None)
        band = self.band or Band(safe=largest, best=largest)  # not known yet
        return Fit(
            title=self._program.title,
            variable=self._name,
            card=self._card,
            safe=band.safe,
            best=band.best,
            limit=search.limit,
            low=search.low,
            high=search.high,
            step=search.step,
            probes=self.probes,
            total=memory_growth.total(line),
            parts=memory_growth.by_category(line),
            sentences=tuple(sentences),
        )


def _run_expandable(prober: Prober, search: Search, band: Band) -> None:
    """Run the value that fits by replay with expandable segments.

    The band gets what the runs say, or None if they could not be made.
    """
    foreseen, band.expandable = band.expandable, None
    if foreseen is None or band.safe is None:
        return
    above = Search(
        test=prober.under(Expandable.key).verdict,
        room=search.room,
        low=band.safe,
        high=foreseen + search.step,
        step=search.step,
    )
    above.run(foreseen)
    band.expandable = above.best


def _refuse_other(probes: dict[int, Probe], value: int) -> None:
    """Raise if no value ran: the program is at fault, not its size."""
    if any(p.ran for p in probes.values()):
        return
    tried = ", ".join(map(str, sorted(probes)))
    first = next(iter(probes.values()))
    refuse(first, f"with every value that was tried ({tried}; its own is {value})")


def _fill(search: Search, prober: Prober) -> None:
    """Run a few values below the answer so that the lines can be fitted.

    A line needs points that are far apart, near the answer.
    """
    for value in _points(search, prober):
        prober(value)


def _points(search: Search, prober: Prober) -> list[int]:
    """Return values below the answer that are far from every run."""
    if search.best is None or search.flat:
        return []
    known, reach = [v for v, p in prober.probes.items() if p.ran], search.best * REACH
    found: list[int] = []
    for part in PARTS:
        wanted = search.nearest(search.low + int((search.best - search.low) * part))
        if wanted < search.best and not any(abs(v - wanted) <= reach for v in [*known, *found]):
            found.append(wanted)
    return found


def cached_query(ask: Any) -> Ask:
    """Wrap the subprocess as a function that runs each request once."""
    return functools.cache(lambda request: ask(probe, request))
