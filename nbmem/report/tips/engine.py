"""Run the rules over a recording and sort their findings.

A rule that fails is skipped, and the others run.
"""

from __future__ import annotations

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

EXPLAINED = 0.75
"""Part of a general rule's saving from which another rule's tip explains it."""
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
    findings = _without_repeated(sorted_findings(found, report.peak.allocated))
    if evidence.fact("notebook") is False:  # a script has no magics
        findings = tuple(replace(finding, command=None) for finding in findings)
    growth = None
    of_growth = {rule.name for rule in RULES if rule.of_growth}
    if any(finding.rule in of_growth for finding in findings):
        growth = faults.part("The growth from step to step", lambda: _growth(evidence), None)
    return Advice(findings=findings, notes=faults.notes, growth=growth)


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


def sorted_findings(findings: Iterable[Finding], peak: int) -> list[Finding]:
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
