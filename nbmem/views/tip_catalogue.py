"""Render the catalogue of tip rules as text: one page, or all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nbmem.report.tips.rule import Rule

_WHEN = {
    "always": "It is told whenever it is found.",
    "short": "It is told where memory is short: an OOM, a retry, a card that is nearly full.",
    "asked": "It is told only by `%nbmem tips --all`.",
}


def visibility_text(rule: Rule) -> str:
    """Return when a rule's tips are shown, in a sentence or two."""
    return _WHEN[rule.when] + (" Also of the host's memory." if rule.anywhere else "")


def render_rule(rule: Rule, *, muted: bool = False) -> str:
    """Return a rule's page, with when its tips are shown."""
    silent = f" You have muted it: `%nbmem unmute {rule.name}`." if muted else ""
    return f"{rule.name}: {rule.text.strip()}\n\n{visibility_text(rule)}{silent}"


def render_rules(rules: Iterable[Rule], muted: Collection[str] = ()) -> str:
    """Return one line for each rule."""
    rows = [(rule.name, rule.title + (" (muted)" if rule.name in muted else "")) for rule in rules]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {title}" for name, title in rows)
