"""Memory grows with every step.

What it sees
    Something of which more is left at the end of each of four or more steps, and that is not the
    graph of a loss (see graph_kept): a list that gets longer, a cache without a bound.
What it costs
    The same bytes with every further step, until the card is full.
Do instead
    Keep it on the CPU (`x.detach().cpu()`), keep a running figure in place of all values, or bound
    it (`collections.deque(maxlen=...)`).
When to ignore it
    It has an end that you know, and fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.categories import Category
from nbmem.core.holders import HolderKind
from nbmem.report import Finding
from nbmem.tips.rule import Rule, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.analysis.growth import Growth
    from nbmem.tips.evidence import Evidence

OTHERS = (Category.ACTIVATIONS, Category.WORKSPACE)
"""Growth of which other rules speak, or that is none."""


def check(e: Evidence) -> Iterator[Finding]:
    """What grows, by name."""
    by_name: dict[str | None, list[Growth]] = {}
    for found in e.growing:
        if found.account.category not in OTHERS:
            by_name.setdefault(_root(found.account.holder), []).append(found)
    for root, lines in by_name.items():
        slope = sum(g.slope for g in lines)
        kept = e.only_in(HolderKind.NAME, root=root) if root else []
        held = e.freed_with(kept) or sum(g.last for g in lines)
        if not e.worth(sum(g.last - g.first for g in lines)):
            continue
        line = next((g.account.line for g in lines if g.account.line), None)
        name = f"`{root}`" if root else "What no name holds"
        plain = root is not None and root.isidentifier()
        yield Finding(
            rule=RULE.name,
            title=f"{name} grows by {say(slope)} with every step and holds {say(held)}",
            evidence=f"More of it is left at the end of each of {lines[0].steps} steps"
            f"{f', made at {line}' if line else ''}; in 1,000 steps that is {say(1000 * slope)}.",
            low=held,
            high=held,
            ground="exact",
            code=f"{root}.append(x.detach().cpu())   # keep it off the card" if plain else None,
        )


def _root(holder: str | None) -> str | None:
    """`history` of `history[...]['loss']`."""
    return None if holder is None else holder.partition("[")[0].partition(".")[0]


RULE = Rule(name="grows_each_step", text=__doc__, check=check)
