"""Render the catalogue of tip rules as text: one page, or all of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from nbmem.report.tips.engine import rule_named
from nbmem.report.tips.mutes import muted
from nbmem.report.tips.rules import RULES

if TYPE_CHECKING:
    from nbmem.report.tips.rule import Rule

_WHEN = {
    "always": "It is told whenever it is found.",
    "short": "It is told where memory is short: an OOM, a retry, a card that is nearly full.",
    "asked": "It is told only by `%nbmem tips --all`.",
}


def visibility_text(rule: Rule) -> str:
    """Return when a rule's tips are shown, in a sentence or two."""
    return _WHEN[rule.when] + (" Also of the host's memory." if rule.anywhere else "")


def _page(rule: Rule, *, silent: bool) -> str:
    """Return a rule's page, with when its tips are shown."""
    note = f" You have muted it: `%nbmem unmute {rule.name}`." if silent else ""
    return f"{rule.name}: {rule.text.strip()}\n\n{visibility_text(rule)}{note}"


def _list(silent: Collection[str]) -> str:
    """Return one line for each rule."""
    rows = [(rule.name, rule.title + (" (muted)" if rule.name in silent else "")) for rule in RULES]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {title}" for name, title in rows)


def render_catalogue(name: str | None) -> str:
    """Return the page of a rule or the list of all, with what is muted.

    Raises:
        UsageError: There is no such rule.
    """
    silent = muted()
    if not name:
        return _list(silent)
    rule = rule_named(name)
    return _page(rule, silent=rule.name in silent)
