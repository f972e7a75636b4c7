"""Plan how to make a program fit: run the remedies that may help.

The first run is of the program without remedies. Its ledger predicts the effect of each remedy, and
whether it can suffice at all. Further runs go to the likely remedies until the cheapest that
suffices is certain. Predictions that were not run are labelled as such.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from nbmem.estimates.questions import plan_verdict
from nbmem.estimates.questions.planner import Planner
from nbmem.estimates.remedies import BY_KEY, exclude_each_other, is_slow, oversubscribes
from nbmem.estimates.runs.probe_run import Request
from nbmem.report.estimate_results import MARGIN, Option, Plan, Probe

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.estimates.questions.planner import Keys
    from nbmem.estimates.questions.search.prober import Ask
    from nbmem.virtual.cards import Card

PAIRED = 3
"""Number of the best remedies that are tried in pairs."""
BEST = 3
"""Number of those predicted to be the best that are run, even if a cheaper one suffices."""
WORTH = 0.01
"""Least saving, as part of the peak, for a remedy's pairs and the search of its largest batch."""


def plan(  # noqa: PLR0913 - the question's parts
    program: Program,
    ask: Ask,
    card: Card,
    *,
    margin: float = MARGIN,
    target: int | None = None,
    variable: str | None = None,
    every: bool = False,
    tell: Callable[[str], None] = lambda _text: None,
    show: Callable[[Plan, str], None] = lambda _plan, _left: None,
) -> Plan:
    """Run a program without remedies and under those that may help.

    Args:
        program: With its batch variable bound if that is known.
        ask: Runs a request and returns the reply.
        card: On which card.
        margin: Part of the card to keep free.
        target: Bytes of the process that are wanted; None for the card less the margin.
        variable: The batch's name in the answer; None for its own name.
        every: Run under every remedy, and under pairs of the best, whatever they can change.
        tell: Called with a line of text after every run.
        show: Called with the answer so far, and with a description of the work that is left.

    Raises:
        UsageError: The program does not run, for another reason than memory.
    """
    kept = int(card.total_bytes * margin)
    if target is not None:
        kept = max(card.total_bytes - target, 0)
    if variable is None and program.binding is not None:
        variable = program.binding.name
    planner = Planner(program, variable, ask, card, kept, tell, show)
    planner.run_baseline()
    if planner.base.fits and not every:
        return planner.plan()
    planner.show(len(planner.open()))
    _singles(planner, every=every)
    _pairs(planner, every=every)
    _slow(planner, every=every)
    _paged(planner)
    searched = list(_searched(planner, every=every))
    for number, keys in enumerate(searched):
        planner.find_largest(keys, len(searched) - number - 1)
    return planner.plan()


def baseline_request(program: Program, card: Card, margin: float) -> Request:
    """Return a plan's first request: the program without remedies."""
    value = None if program.binding is None else program.binding.value
    return Request(card=card, margin=int(card.total_bytes * margin), value=value)


def _singles(planner: Planner, *, every: bool) -> None:
    """Run single remedies until the verdict is settled, then the best ones."""
    while keys := [k for k in planner.open() if not is_slow(k)]:
        if every or not planner.settled():
            wanted = [k for k in keys if every or planner.may_suffice(k)]
        else:
            wanted = [k for k in planner.sort_singles()[:BEST] if k in keys]
        if not wanted:
            return
        planner.run(wanted[0], len(wanted) - 1)


def _pairs(planner: Planner, *, every: bool) -> None:
    """Run pairs of the best remedies where no single one suffices."""
    base = planner.base
    singles = [o for k, o in planner.options.items() if len(k) == 1 and o.probe is not None]
    if not every and plan_verdict.cheapest(singles) is not None:
        return
    worth = sorted(_worth(singles, base), key=lambda option: -plan_verdict.gain(option))
    # If the stronger form helps, its milder form does not displace another remedy.
    milder = {BY_KEY[o.key].milder for o in worth}
    worth = [o for o in worth if o.key not in milder]
    couples = [
        couple
        for couple in itertools.combinations([plan_verdict.keys(o)[0] for o in worth[:PAIRED]], 2)
        if not exclude_each_other(couple)
    ]
    for number, couple in enumerate(couples):
        planner.run(couple, len(couples) - number - 1)


def _slow(planner: Planner, *, every: bool) -> None:
    """Run slow remedies after all others, so that they delay no answer."""
    for keys in [keys for keys in planner.open() if is_slow(keys)]:
        if every or (planner.may_suffice(keys) and not planner.settled()):
            planner.run(keys)


def _paged(planner: Planner) -> None:
    """Run the paging remedies, which use unified memory.

    They are run beside all other remedies, to show what they cost.
    """
    for keys in [keys for keys in planner.options if oversubscribes(keys)]:
        planner.run(keys)


def _searched(planner: Planner, *, every: bool) -> Iterator[Keys]:
    """Yield the options whose largest value is searched for.

    These are all that help with `every`, else the cheapest, else the best. Slow remedies are left
    out: a search runs the program many times.
    """
    if planner.value is None:
        return
    first, *others = planner.plan().options
    ran = _worth(others, planner.base)
    wanted = ran if every else ([o for o in ran if o.cheapest] or ran[:1])
    found = dict.fromkeys([plan_verdict.keys(o) for o in (first, *wanted)])
    yield from (keys for keys in found if not is_slow(keys))


def _worth(options: Sequence[Option], base: Probe) -> list[Option]:
    """Select options that save enough for a pair or a search."""
    least = WORTH * base.allocated
    return [o for o in options if o.probe is not None and plan_verdict.gain(o) >= least]
