"""Run the rules over a recording and sort their findings.

A rule that fails is skipped, and the others run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.runtime.fault_isolation import Faults
from nbmem.core.session.categories import Category
from nbmem.core.suggestions import suggest_or_list
from nbmem.report.analysis.growth_by_step import growth_by_step
from nbmem.report.tips.evidence import Evidence
from nbmem.report.tips.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbmem.core.session.session import Session
    from nbmem.report.exploration import StepGrowth
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import Finding, Report
    from nbmem.report.tips.rule import Rule

    _SortKey = tuple[bool, bool, bool, int, int, str]

GROWTH_RULES = frozenset(("grows_each_step", "graph_kept"))
"""Rules about memory that grows from step to step."""
EXPLAINED = 0.75
"""Part of a general rule's saving from which another rule's tip explains it."""
_LINE = re.compile(r"\bline \d")
_LEFT = frozenset(("reference_cycle",))
"""Rules about garbage."""
_NAMED = GROWTH_RULES | _LEFT
"""Rules that say more, or are said apart, where a function's variables have names."""
LARGE_SAVING = 0.1
"""Share of the allocated peak from which a saving precedes tips about the cache."""


def rule_named(name: str) -> Rule:
    """Return the rule of a name.

    Raises:
        UsageError: There is no such rule; the text has the nearest name.
    """
    by_name = {rule.name: rule for rule in RULES}
    if name not in by_name:
        lister = "Tab after `%nbmem mute`"
        meant = suggest_or_list(name, by_name, "`{}`", lister=lister)
        raise UsageError(f"{name!r} is not a tip. {meant}")
    return by_name[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The findings of all rules, and notes on those that failed.

    Attributes:
        findings: The largest certain saving first; those with a price behind, last resorts at the
            end.
        notes: One sentence for each fault, with the rules that it stopped.
        growth: What grows from step to step, if a finding is about that.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    growth: StepGrowth | None = None


def advise(
    session: Session, card_ledger: CardLedger, report: Report, *, everything: bool = False
) -> Advice:
    """Run every rule on a recording, and sort what they find.

    Args:
        session: What was recorded.
        card_ledger: The card's ledger.
        report: The card's report, ready to draw.
        everything: Also run the rules that apply only where memory is short.
    """
    evidence = Evidence(session, card_ledger, report, everything=everything)
    found: list[Finding] = []
    faults = Faults()  # a faulty rule must not stop the report or other tips
    for rule in RULES:
        run = partial(_run_rule, rule, evidence)
        found.extend(faults.part(f"The tip {rule.name}", run, []))
    findings = _without_repeated(_sorted(found, report.peak.allocated))
    if evidence.fact("notebook") is False:  # a script has no magics
        findings = tuple(replace(finding, command=None) for finding in findings)
    growth = None
    if any(finding.rule in GROWTH_RULES for finding in findings):
        growth = faults.part("The growth from step to step", lambda: _growth(evidence), None)
    return Advice(findings=findings, notes=faults.notes, growth=growth)


def with_function(ended: Advice, before: Advice, function: str, report: Report) -> Advice:
    """Join the advice on a recording with that on the function that made its peak.

    What the function held is freed when it returns: at the end of the recording only what is still
    there is known.

    Args:
        ended: The advice on the whole recording.
        before: The advice on the recording until the function's variables were freed.
        function: The function's name.
        report: The report of the whole recording.
    """
    rules, peak = {rule.name: rule for rule in RULES}, report.peak.allocated
    inside = [one for one in before.findings if not rules[one.rule].of_cache]
    # What the function's return leaves: a cache, and garbage of what it had.
    left = [one for one in ended.findings if rules[one.rule].of_cache or one.rule in _LEFT]
    stays = [one for one in ended.findings if rules[one.rule].anywhere and one.rule not in _NAMED]
    known = {(one.rule, one.title) for one in (*left, *stays)}
    inside = [
        replace(one, title=_of_function(one.title, function), command=None)
        for one in inside
        if (one.rule, one.title) not in known
    ]
    found = _sorted([*inside, *stays, *left], peak)
    if any(one.high >= LARGE_SAVING * peak and not rules[one.rule].has_price for one in inside):
        last = [one for one in found if one in left or rules[one.rule].last_resort]
        found = [*(one for one in found if one not in last), *last]
    return Advice(findings=tuple(found), notes=(*ended.notes, *before.notes), growth=before.growth)


def _of_function(title: str, function: str) -> str:
    """Add the function to a title that names no place."""
    place = f"{function}()"
    return title if place in title or _LINE.search(title) else f"In {place}: {title}"


def _without_repeated(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Leave out what a general rule says of memory that another one explains."""
    by_name = {rule.name: rule for rule in RULES}
    known = [by_name[one.rule] for one in findings]
    explained = max(
        (
            one.high
            for one, rule in zip(findings, known, strict=True)
            if not (rule.general or rule.of_cache or rule.last_resort)
        ),
        default=0,
    )
    return tuple(
        one
        for one, rule in zip(findings, known, strict=True)
        if not rule.general or one.high * EXPLAINED > explained
    )


def _growth(e: Evidence) -> StepGrowth | None:
    """Return the growth that is worth a tip, step by step."""
    found = (*e.growing, *e.grown_at_peak)
    room = None
    if e.card_known and e.trace.info.keeps_history and not e.ran_out:
        cached = Category.CACHED_RELEASABLE, Category.CACHED_STUCK
        room = e.sum_at(e.card_ledger.events, Category.FREE, *cached)
    return growth_by_step(e.card_ledger, [g for g in found if g.works and e.worth(g.held)], room)


def _run_rule(rule: Rule, evidence: Evidence) -> list[Finding]:
    return list(rule.check(evidence)) if _applies(rule, evidence) else []


def _sorted(findings: Iterable[Finding], peak: int) -> list[Finding]:
    """Sort findings of a recording whose highest allocated bytes are given."""
    by_name = {rule.name: rule for rule in RULES}

    def key(finding: Finding) -> _SortKey:
        rule = by_name[finding.rule]
        is_later = rule.of_cache or finding.low < LARGE_SAVING * peak
        order = rule.last_resort, is_later, rule.has_price
        return *order, -finding.low, -finding.high, finding.rule

    return sorted(findings, key=key)


def _applies(rule: Rule, evidence: Evidence) -> bool:
    if not (rule.anywhere or evidence.trace.info.keeps_history):
        return False
    if evidence.everything or rule.when == "always":
        return True
    return rule.when == "short" and evidence.short is not None
