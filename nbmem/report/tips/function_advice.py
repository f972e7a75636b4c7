"""Join the advice on a recording and on the function that made its peak.

What a function's variables held is freed when it returns. So the rules run twice: on the whole
recording, at whose end only what is still there is known, and on that until the function returned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.report.tips.engine import LARGE_SAVING, Advice, sorted_findings
from nbmem.report.tips.rules import RULES

if TYPE_CHECKING:
    from nbmem.report.model import Finding, Report
    from nbmem.report.tips.rule import Rule

_GROWS = "grows_each_step"
"""The rule whose tips begin with a name, if there is one."""
_LINE = re.compile(r"\bline \d")
_VARIABLE = re.compile(r"`(\w+)")
_NAMELESS = "`something of "
_AT_PEAK = " at the peak"


def with_function(
    ended: Advice,
    before: Advice,
    function: str,
    report: Report,
    callers: Sequence[Mapping[str, Any]] = (),
) -> Advice:
    """Join two pieces of advice.

    Args:
        ended: That on the whole recording.
        before: That on the recording until the function's variables were freed.
        function: The function's name.
        report: The report of the whole recording.
        callers: The `function`s that called it and their `variables`.
    """
    owners = {name: one["function"] for one in callers for name in one["variables"]}

    def placed(one: Finding) -> str:
        return _of_function(one.title, _owner(one.title, owners) or function)

    rules, peak = {rule.name: rule for rule in RULES}, report.peak.allocated
    # What the function's return leaves: a cache, and garbage of what it had.
    garbage = max((one.high for one in before.findings if rules[one.rule].of_garbage), default=0)
    left = [
        one
        for one in ended.findings
        if rules[one.rule].of_cache or (rules[one.rule].of_garbage and one.high > garbage)
    ]
    stays = [one for one in ended.findings if _is_of_end(rules[one.rule])]
    # At the peak there may be more of what grew, and a checkpoint that was freed behind it.
    grows = any(one.rule == _GROWS for one in before.findings)
    grown = [
        replace(one, title=placed(one)) if _is_freed(one) else one
        for one in ended.findings
        if grows and _has_name(one)
    ]
    stays += grown
    loading = report.peak.at.phase == "load"
    if loading:
        stays += [one for one in ended.findings if rules[one.rule].of_loading and one not in stays]
    known = {(one.rule, one.title) for one in (*left, *stays)}
    known_rules = {_GROWS} if grown else set[str]()
    known_rules |= {rule.name for rule in RULES if loading and rule.of_loading and rule.anywhere}
    inside = [
        replace(one, title=placed(one), command=None)
        for one in before.findings
        if not rules[one.rule].of_cache
        and one.rule not in known_rules
        and (one.rule, one.title) not in known
    ]
    found = sorted_findings([*inside, *stays, *left], peak)
    if any(one.high >= LARGE_SAVING * peak and not rules[one.rule].has_price for one in inside):
        last = [one for one in found if one in left or rules[one.rule].last_resort]
        found = [*(one for one in found if one not in last), *last]
    return Advice(findings=tuple(found), notes=(*ended.notes, *before.notes), growth=before.growth)


def names_cause(advice: Advice) -> bool:
    """Return whether advice on a whole recording names a cause.

    A look at one call of many adds nothing to it then. A cache and garbage are no causes, nor is
    growth without a name.
    """
    return any(map(_is_cause, advice.findings))


def _is_cause(finding: Finding) -> bool:
    rule = next(one for one in RULES if one.name == finding.rule)
    is_general = rule.of_cache or rule.last_resort or rule.of_garbage
    return not is_general and (rule.name != _GROWS or _has_name(finding))


def _is_of_end(rule: Rule) -> bool:
    """Return whether a rule's tips on the end count, whatever a function held.

    Those on growth and on garbage say more, or are said apart, where its variables have names.
    """
    return rule.anywhere and not (rule.of_growth or rule.of_garbage)


def _has_name(finding: Finding) -> bool:
    """Return whether a tip on what grows begins with a name."""
    title = finding.title
    return finding.rule == _GROWS and title.startswith("`") and not title.startswith(_NAMELESS)


def _is_freed(finding: Finding) -> bool:
    """Return whether what grew was freed behind the peak."""
    return finding.command is None and _AT_PEAK in finding.title


def _owner(title: str, owners: Mapping[str, str]) -> str | None:
    """Return the caller whose variable a title names first, or None."""
    name = _VARIABLE.search(title)
    return None if name is None else owners.get(name[1])


def _of_function(title: str, function: str) -> str:
    """Add the function to a title that names no place."""
    place = f"{function}()"
    return title if place in title or _LINE.search(title) else f"In {place}: {title}"
