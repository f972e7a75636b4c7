"""Rank what to do about an out-of-memory error: one list for every view."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.report.model import Finding, OomReport, Report

ANSWERED = {"batch_size", "framework_cache", "preallocated", "traceback_kept"}
"""Rules of nbmem/report/tips that an explained error covers with its own figures."""
FIRST = ("graph_kept", "no_grad_missing", "grows_each_step", "large_result")
"""Rules of what no other remedy helps against: what has no end, and what no card could hold. A
graph that no backward goes through costs nothing to leave out."""
LARGE, OWN_CALLS = "large_result", ("last_logits", "logits", "eager_attention", "combined")
"""A rule on any large result, and the remedies that make a language model's smaller by its own
calls."""
MAX_REMEDIES = 3


def ended_by_oom(report: Report) -> bool:
    """Return whether an out-of-memory error ended the recording."""
    return bool(report.ooms) and not report.ooms[0].caught


def with_tips(report: Report, tips: tuple[Finding, ...]) -> Report:
    """Return a report with its tips.

    After an error that ended the recording, its remedies come first: the explanation, the tips, the
    sidebar and JSON have one order. What grows, and one result that is too large, come first of
    all. Tips that a remedy answers with better figures are left out.
    """
    if not ended_by_oom(report):
        return replace(report, findings=tips)
    chief = _growth_first(report.ooms[0], tips)
    answered = ANSWERED | {remedy.rule for remedy in chief.remedies}
    answered |= {LARGE} if _has_own_call(chief) else set()
    others = tuple(tip for tip in tips if tip.rule not in answered)
    return replace(report, ooms=(chief, *report.ooms[1:]), findings=(*chief.remedies, *others))


def without_remedies(report: Report) -> tuple[Finding, ...]:
    """Return the tips of a report beside those that its explanation has."""
    shown = report.ooms[0].remedies if ended_by_oom(report) else ()
    return tuple(tip for tip in report.findings if tip not in shown)


def _growth_first(chief: OomReport, tips: tuple[Finding, ...]) -> OomReport:
    """Return an error with the tips of what grows at the head of its remedies.

    They count if they hold at least what was asked for.
    """
    least = chief.wanted or 0
    growing = [tip for tip in tips if tip.rule in FIRST and tip.high >= least]
    if _has_own_call(chief):
        growing = [tip for tip in growing if tip.rule != LARGE]
    tried = {remedy.rule: remedy for remedy in chief.remedies if remedy.rule in FIRST}
    first = [_merged(tip, tried.pop(tip.rule, None)) for tip in growing]
    rest = [remedy for remedy in chief.remedies if remedy.rule not in FIRST or remedy.rule in tried]
    return replace(chief, remedies=(*first, *rest)[:MAX_REMEDIES])


def _has_own_call(chief: OomReport) -> bool:
    return any(remedy.rule in OWN_CALLS for remedy in chief.remedies)


def _merged(tip: Finding, tried: Finding | None) -> Finding:
    """Return a tried remedy with the code and the place of the tip."""
    if tried is None:
        return tip
    return replace(tried, code=tip.code, command=tip.command)
