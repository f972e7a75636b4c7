"""Will it fit: the largest value of a variable for which the card has room."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from nbmem.answers import CardFigures, Fit, Probe
from nbmem.core.errors import UsageError
from nbmem.core.units import format_bytes
from nbmem.estimates import growth
from nbmem.estimates.probing import Reply, Request, probe, refuse
from nbmem.estimates.search import Search, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.estimates.programs import Program
    from nbmem.virtual.cards import Card

    Ask = Callable[[Request], Reply]
    Tell = Callable[[str], None]

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
    """

    def __init__(
        self, ask: Ask, card: Card, margin: int, tell: Tell, remedies: tuple[str, ...] = ()
    ) -> None:
        self.probes: dict[int, Probe] = {}
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
        return self.probes[value]

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
        test=prober.verdict, room=card.total_bytes - kept, low=low, high=high, step=step
    )
    if search.has(bound.value):
        refuse(prober(bound.value), f"as it is, with {variable or bound.name} = {bound.value}")
    search.run(bound.value)
    _refuse_other(prober.probes, bound.value)
    _fill(search, prober)
    probes = tuple(prober.probes[value] for value in sorted(prober.probes))
    line = growth.same_peak(probes, search.best)
    total = growth.total(line)
    figures = CardFigures(name=card.name, total=card.total_bytes, margin=kept)
    fits = [p.value for p in probes if p.fits and p.value is not None]
    name = variable or bound.name
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
        total=total,
        parts=growth.by_category(line),
        sentences=tuple(_sentences(name, search, probes, figures, program, line)),
    )


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


def _sentences(  # noqa: PLR0913, PLR0917 - what a verdict is made of
    name: str,
    search: Search,
    probes: Sequence[Probe],
    card: CardFigures,
    program: Program,
    line: Sequence[Probe],
) -> list[str]:
    found = [_verdict(name, search, probes, card)]
    kept = f"{format_bytes(card.margin)} ({card.margin / card.total:.0%} of the card) are"
    found.append(
        f"{kept if card.margin else 'Nothing is'} kept free for the error of the estimate."
    )
    failed = [p for p in probes if p.failure is not None and p.failure.kind == "other"]
    if failed:
        values = ", ".join(str(p.value) for p in failed[:4])
        found.append(
            f"With {name} = {values} the program fails for another reason than memory: "
            f"{failed[0].failure}."
        )
    if search.widened:
        found.append(f"Only multiples of {search.step} were found to run.")
    found += _oddities(name, probes)
    others = sorted({p.phase or "none" for p in probes if p.ran} - {p.phase for p in line})
    if line and others:
        found.append(
            f"The line goes through the {len(line)} runs whose peak is in {line[0].phase}; "
            f"in the others it is in {', '.join(others)}."
        )
    if program.names is not None:
        for note in dict.fromkeys(note for _, note in program.names.notes):
            names = [n for n, said in program.names.notes if said == note]
            found.append(f"{', '.join(names)}: {note}.")
        found += [f"{n} was left out: it is {kind}." for n, kind in program.names.left_out]
    return found


def _verdict(name: str, search: Search, probes: Sequence[Probe], card: CardFigures) -> str:
    fitting = [p.value for p in probes if p.fits and p.value is not None]
    if not fitting:
        least = min((p for p in probes if p.ran), key=lambda p: p.value or 0)
        need = least.wanted - (card.total - card.margin)
        return (
            f"It never fits on a {card.name}: with {name} = {least.value} it lacks "
            f"{format_bytes(max(need, 0))}."
        )
    best = max(fitting)
    top = next(p for p in probes if p.value == best)
    held = f"{format_bytes(top.process)} of {format_bytes(card.total)}"
    after = next((p for p in probes if p.value == search.limit), None)
    if after is not None and after.failure is not None and after.failure.kind == "other":
        return (
            f"{name} = {best} fits on a {card.name}: {held}. "
            f"{search.limit} fails for another reason than memory."
        )
    if search.flat:
        return (
            f"{name} changes nothing: from {min(fitting)} to {best} the program takes the same "
            f"{format_bytes(top.allocated)}. Is the batch made outside of it, with a size of its "
            "own?"
        )
    if search.limit is None:
        return f"It fits on a {card.name} for every value of {name} up to {best}: {held}."
    verdict = f"{name} = {best} fits on a {card.name}: {held}."
    if after is None:
        return f"{verdict} {search.limit} does not."
    line = after.failure.line if after.failure else None
    at = "" if line is None else f" at line {line}"
    return (
        f"{verdict} {search.limit} runs out of memory{at}; if there were no end to the card, it "
        f"would take {format_bytes(after.wanted)}."
    )


def _oddities(name: str, probes: Sequence[Probe]) -> list[str]:
    ran = [p for p in probes if p.ran]
    for smaller, larger in itertools.pairwise(ran):
        if larger.fits and not smaller.fits:
            text = (
                f"It is not monotone: {smaller.value} does not fit and {larger.value} does, so "
                f"there may be other values of {name} that fit, and some below the answer do not."
            )
            return [text]
        if larger.allocated < smaller.allocated:
            text = (
                f"It is not monotone: {larger.value} takes less memory than {smaller.value}, so a "
                f"larger {name} than the answer may fit, too."
            )
            return [text]
    return []


def asker(ask: Any) -> Ask:
    """A process of its own as something that runs requests."""
    return lambda request: ask(probe, request)
