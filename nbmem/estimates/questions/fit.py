"""Find the largest value of a variable that fits on the card."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.core.units import format_bytes
from nbmem.estimates.card_choice import figures_of
from nbmem.estimates.questions import fit_sentences, memory_growth, predicted_savings
from nbmem.estimates.questions.value_search import Search, Verdict
from nbmem.estimates.runs.probe_run import Reply, Request, probe, refuse
from nbmem.report.estimate_results import Fit, Probe
from nbmem.virtual.warnings import COMPILE_LATER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.estimates.programs.programs import Program
    from nbmem.report.estimate_results import CardFigures
    from nbmem.virtual.cards import Card

    Ask = Callable[[Request], Reply]
    Tell = Callable[[str], None]
    Show = Callable[[Fit, str], None]

MARGIN = 0.02
"""Part of the card to keep free. docs/accuracy.md shows how many of the 35 runs recorded on a real
card exceeded the prediction by at most that."""
PARTS = (0.25, 0.5, 0.75)
"""Parts of the answer: values there are run, too, so that fitted lines have points far apart."""
REACH = 0.12
"""Part of the answer within which an existing run replaces a run of such a value."""


class Prober:
    """A runner of values that runs each value once and keeps its probe.

    Attributes:
        probes: By value.
        on_probe: Called after each run.
    """

    def __init__(  # noqa: PLR0913 - the question's parts
        self,
        ask: Ask,
        card: Card,
        margin: int,
        tell: Tell,
        remedies: tuple[str, ...] = (),
        *,
        compiled: bool = False,
    ) -> None:
        self.probes: dict[int, Probe] = {}
        self.on_probe: Callable[[], None] = lambda: None
        self._ask = ask
        self._card, self._margin, self._tell = card, margin, tell
        self._remedies, self._compiled = remedies, compiled

    def __call__(self, value: int, parts: int = 1) -> Probe:
        """Run a value; with `parts`, in so many micro-batches."""
        if value not in self.probes:
            request = Request(
                card=self._card,
                margin=self._margin,
                value=value // parts,
                remedies=self._remedies,
                compiled=self._compiled,
            )
            found = self.probes[value] = self._ask(request).probe
            how = " compiled" if self._compiled else ""
            self._tell(f"{value}{how}: {_how(found)}")
            self.on_probe()
        return self.probes[value]

    def least(self, value: int) -> int:
        """Return the process bytes that a run value cannot do without.

        They are its tensors and its context. Torch may release every cached segment, but nothing
        that is in use.
        """
        found = self.probes[value]
        return found.allocated + found.process - found.reserved

    def verdict(self, value: int, parts: int = 1) -> tuple[Verdict, int]:
        """Run a value; return its verdict and the bytes that it needs.

        The bytes are 0 where the program fails for another reason than memory.
        """
        found = self(value, parts)
        if found.failure is not None and found.failure.kind == "other":
            return "fails", 0
        return "fits" if found.fits else "full", found.wanted


def _how(found: Probe) -> str:
    if found.failure is not None and found.failure.kind == "other":
        return f"fails, {found.failure.text}"
    verdict = "fits" if found.fits else "does not fit"
    return f"{format_bytes(found.need)} {verdict}"


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

    def run_search(*, compiled: bool) -> _FitSearch:
        prober = Prober(ask, card, kept, tell, remedies, compiled=compiled)
        search = Search(
            test=prober.verdict, room=card.total_bytes - kept, low=low, high=high, step=step
        )
        figures = figures_of(card, kept)
        return _FitSearch(program, variable or bound.name, prober, search, figures, show)

    eager = run_search(compiled=False)
    eager.run(bound.value)
    if not any(COMPILE_LATER in p.notes for p in eager.probes):
        return eager.answer()
    show(eager.answer(), "compiled, it is still to be run")
    planned = run_search(compiled=True)
    planned.eager_best = eager.best
    why = planned.run_again(bound.value if eager.best is None else eager.best)
    return planned.answer() if why is None else eager.answer(why)


class _FitSearch:
    """A search and the answer that it builds.

    Attributes:
        eager_best: What the search before found, in which compiled functions ran eagerly.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the question's parts
        self,
        program: Program,
        name: str,
        prober: Prober,
        search: Search,
        card: CardFigures,
        show: Show,
    ) -> None:
        self._program, self._name, self._card = program, name, card
        self._prober, self._search, self._show = prober, search, show
        self.eager_best: int | None = None
        prober.on_probe = self._add_notes

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Every run, sorted by value."""
        known = self._prober.probes
        return tuple(known[value] for value in sorted(known))

    @property
    def best(self) -> int | None:
        """The largest value that was run and fits, or None."""
        return max((p.value for p in self.probes if p.fits and p.value is not None), default=None)

    def run(self, own: int) -> None:
        """Search from the program's own value.

        Raises:
            UsageError: It does not run, for another reason than memory.
        """
        if self._search.has(own):
            refuse(self._prober(own), f"as it is, with {self._name} = {own}")
        self._search.run(own)
        _refuse_other(self._prober.probes, own)
        _fill(self._search, self._prober)

    def run_again(self, start: int) -> str | None:
        """Search from another search's result; return the failure or None.

        The failure is the reason why the first value does not run in this mode.
        """
        first = self._prober(self._search.nearest(start))
        if not first.ran:
            return str(first.failure)
        self._search.first_guess = predicted_savings.largest(first, self._search.room)
        self._search.run(start)
        _fill(self._search, self._prober)
        return None

    def _add_notes(self) -> None:
        runs = self.probes
        if any(p.ran for p in runs):
            said = fit_sentences.partial_sentences(self._name, self._search, runs, self._card)
            self._show(self._answer(said, ()), fit_sentences.progress_text(runs))

    def answer(self, why: str | None = None) -> Fit:
        """Build the answer of a finished search.

        Args:
            why: Compiled functions could not be run but eagerly, and why; None where they were.
        """
        line = memory_growth.same_peak(self.probes, self._search.best)
        said = fit_sentences.final_sentences(
            self._name, self._search, self.probes, self._card, self._program, line
        )
        said[2:2] = fit_sentences.of_compiled(self._name, self.probes, self.eager_best, why)
        return self._answer(said, line)

    def _answer(self, sentences: Sequence[str], line: Sequence[Probe]) -> Fit:
        search, line = self._search, line or memory_growth.same_peak(self.probes, self._search.best)
        return Fit(
            title=self._program.title,
            variable=self._name,
            card=self._card,
            best=self.best,
            limit=search.limit,
            low=search.low,
            high=search.high,
            step=search.step,
            probes=self.probes,
            total=memory_growth.total(line),
            parts=memory_growth.by_category(line),
            sentences=tuple(sentences),
        )


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
    if search.best is None or search.flat:
        return
    for part in PARTS:
        wanted = search.nearest(search.low + int((search.best - search.low) * part))
        reach = search.best * REACH
        known = [v for v, p in prober.probes.items() if p.ran]
        if wanted < search.best and not any(abs(v - wanted) <= reach for v in known):
            prober(wanted)


def cached_query(ask: Any) -> Ask:
    """Wrap the subprocess as a function that runs each request once."""
    return functools.cache(lambda request: ask(probe, request))
