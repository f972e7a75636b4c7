"""Runs the rules over a recording; a rule that fails is switched off, and the others go on."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.tips.evidence import Evidence
from nbmem.tips.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nbmem.core.session import Session
    from nbmem.ledger.books import Books
    from nbmem.report import Finding, Report
    from nbmem.tips.rule import Rule

logger = logging.getLogger("nbmem")


def rule_named(name: str) -> Rule:
    """The rule of a name.

    Raises:
        UsageError: There is none; the text has the nearest name.
    """
    by_name = {rule.name: rule for rule in RULES}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1)
        meant = f"Did you mean `{near[0]}`? " if near else ""
        raise UsageError(f"{name!r} is not a tip. {meant}There are: {', '.join(by_name)}.")
    return by_name[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the rules said.

    Attributes:
        findings: The largest saving first; last resorts at the end.
        notes: One sentence for each rule that failed.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()


def advise(  # noqa: PLR0913 - the last ones are for commands and tests
    session: Session,
    books: Books,
    report: Report,
    *,
    everything: bool = False,
    muted: Collection[str] = (),
    rules: Sequence[Rule] = RULES,
) -> Advice:
    """Ask every rule.

    Args:
        session: What was recorded.
        books: The card's books.
        report: The same, ready to draw.
        everything: Ask also the rules that speak only where memory is short.
        muted: Names of rules that are not asked.
        rules: The rules.
    """
    evidence = Evidence(session, books, report, everything=everything)
    found: list[tuple[bool, Finding]] = []
    notes: list[str] = []
    for rule in rules:
        if rule.name in muted:
            continue
        try:
            if not _may_speak(rule, evidence):
                continue
            found.extend((rule.last_resort, finding) for finding in rule.check(evidence))
        except Exception as err:  # one broken rule must not cost the report or the other tips
            notes.append(
                f"The tip {rule.name} was left out: {err!r}. The others are not affected; "
                "please report it with the session's file (%nbmem save)."
            )
            logger.debug("rule %s failed", rule.name, exc_info=True)
    found.sort(key=lambda entry: (entry[0], -entry[1].high, entry[1].rule))
    return Advice(findings=tuple(finding for _, finding in found), notes=tuple(notes))


def _may_speak(rule: Rule, evidence: Evidence) -> bool:
    if evidence.everything or rule.when == "always":
        return True
    return rule.when == "short" and evidence.short is not None


def find(
    session: Session,
    books: Books,
    report: Report,
    *,
    everything: bool = False,
    muted: Collection[str] = (),
) -> tuple[Finding, ...]:
    """What the rules found, the largest saving first; see `advise`."""
    return advise(session, books, report, everything=everything, muted=muted).findings
