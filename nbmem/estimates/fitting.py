"""Will it fit: the largest value of a variable for which the card has room."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbmem.answers import Fit, Probe
from nbmem.core.errors import UsageError
from nbmem.core.units import format_bytes
from nbmem.estimates import fit_sentences, growth
from nbmem.estimates.cards import figures_of
from nbmem.estimates.probing import Reply, Request, probe, refuse
from nbmem.estimates.search import Search, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.estimates.programs import Program
    from nbmem.virtual.cards import Card

    Ask = Callable[[Request], Reply]
    Tell = Callable[[str], None]
    Show = Callable[[Fit, str], None]

MARGIN = 0.02
"""Part of the card that is kept free: docs/accuracy.md shows how many of the 35 runs recorded on a
real card needed at most so much more than was predicted."""
PARTS = (0.25, 0.5, 0.75)
"""Of the answer: values there are run, too, so that the lines go through points that lie apart."""
REACH = 0.12
"""A run counts as being there if it is as near as this part of the answer."""


class Prober:
    """Runs each value once, and tells how it went.

    Attributes:
        probes: By value.
        heard: Called after each run.
    """

    def __init__(
        self, ask: Ask, card: Card, margin: int, tell: Tell, remedies: tuple[str, ...] = ()
    ) -> None:
        self.probes: dict[int, Probe] = {}
        self.heard: Callable[[], None] = lambda: None
        self._ask = ask
        self._card, self._margin, self._tell = card, margin, tell
        self._remedies = remedies

    def __call__(self, value: int, parts: int = 1) -> Probe:
        """Run a value; with `parts`, in so many micro-batches."""
        if value not in self.probes:
            request = Request(
                card=self._card, margin=self._margin, value=value // parts, remedies=self._remedies
            )
            found = self.probes[value] = self._ask(request).probe
            self._tell(f"{value}: {_how(found)}")
            self.heard()
        return self.probes[value]

    def least(self, value: int) -> int:
        """Bytes of the process without which a value that ran cannot do: its tensors, its context.

        Torch may give back every cached segment, but nothing that is in use.
        """
        found = self.probes[value]
        return found.allocated + found.process - found.reserved

    def verdict(self, value: int, parts: int = 1) -> tuple[Verdict, int]:
        """What a search wants to know."""
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
    """Search the largest value of the program's variable that fits.

    Args:
        program: With a variable.
        ask: Runs a request and replies.
        card: On which card.
        margin: Part of the card to keep free.
        between: Smallest and largest value; None for 1 and no bound.
        step: Distance of values that are told apart.
        variable: What the variable is called in the answer; None for its own name.
        remedies: Keys of remedies under which it runs.
        tell: Hears about every run.
        show: Is given the answer as far as it is known, and what is left to do in words.

    Raises:
        UsageError: The range or the program cannot be used.
    """
    bound = program.binding
    assert bound is not None  # noqa: S101 - the callers bind one
    low, high = between or (min(step, max(bound.value, 1)), None)
    if low < 0 or step < 1 or (high is not None and high < low):
        raise UsageError(f"There is nothing between {low} and {high} in steps of {step}.")
    kept = int(card.total_bytes * margin)
    prober = Prober(ask, card, kept, tell, remedies)
    search = Search(
        test=prober.verdict,
        room=card.total_bytes - kept,
        low=low,
        high=high,
        step=step,
    )
    name = variable or bound.name
    figures = figures_of(card, kept)

    def answer(sentences: Callable[[Sequence[Probe]], list[str]]) -> Fit:
        probes = tuple(prober.probes[value] for value in sorted(prober.probes))
        line = growth.same_peak(probes, search.best)
        fits = [p.value for p in probes if p.fits and p.value is not None]
        return Fit(
            title=program.title,
            variable=name,
            card=figures,
            best=max(fits, default=None),
            limit=search.limit,
            low=low,
            high=high,
            step=search.step,
            probes=probes,
            total=growth.total(line),
            parts=growth.by_category(line),
            sentences=tuple(sentences(line)),
        )

    def heard() -> None:
        runs = prober.probes.values()
        if any(p.ran for p in runs):
            show(
                answer(lambda _line: fit_sentences.so_far(name, search, runs, figures)),
                fit_sentences.left(runs),
            )

    prober.heard = heard
    if search.has(bound.value):
        own = prober(bound.value)
        refuse(own, f"as it is, with {name} = {bound.value}")
    search.run(bound.value)
    _refuse_other(prober.probes, bound.value)
    _fill(search, prober)
    probes = tuple(prober.probes[value] for value in sorted(prober.probes))
    return answer(lambda line: fit_sentences.whole(name, search, probes, figures, program, line))


def _refuse_other(probes: dict[int, Probe], value: int) -> None:
    """Nothing ran at all: the program is at fault, not its size."""
    if any(p.ran for p in probes.values()):
        return
    tried = ", ".join(map(str, sorted(probes)))
    first = next(iter(probes.values()))
    refuse(first, f"with every value that was tried ({tried}; its own is {value})")


def _fill(search: Search, prober: Prober) -> None:
    """Run a few values below the answer: a line needs points that lie apart, near it."""
    if search.best is None or search.flat:
        return
    for part in PARTS:
        wanted = search.nearest(search.low + int((search.best - search.low) * part))
        reach = search.best * REACH
        known = [v for v, p in prober.probes.items() if p.ran]
        if wanted < search.best and not any(abs(v - wanted) <= reach for v in known):
            prober(wanted)


def asker(ask: Any) -> Ask:
    """A process of its own as something that runs requests, each once."""
    return functools.cache(lambda request: ask(probe, request))
