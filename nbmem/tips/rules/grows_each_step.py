"""Memory grows with every step.

What it sees
    Something of which more is left from step to step, over four or more of them, and that is not
    the graph of a loss (see graph_kept): a list that gets longer, a cache without a bound.
What it costs
    The same bytes with every further step, until the card is full.
Do instead
    Keep it on the CPU (`x.detach().cpu()`), keep a running figure in place of all values, or bound
    it (`collections.deque(maxlen=...)`).
When to ignore it
    It has an end that you know, and fits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbmem.core.categories import Category
from nbmem.core.holders import HolderKind
from nbmem.report import Finding
from nbmem.tips.rule import Rule, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.analysis.growth import Growth
    from nbmem.core.holders import HeldStorage
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
        yield Finding(
            rule=RULE.name,
            title=f"{name} grows by {say(slope)} with every step and holds {say(held)}",
            evidence=f"More of it is left from step to step, over {lines[0].steps} of them"
            f"{f', made at {line}' if line else ''}; in 1,000 steps that is {say(1000 * slope)}.",
            low=held,
            high=held,
            ground="exact",
            code=_code(root, kept),
        )


def _code(root: str | None, kept: list[HeldStorage]) -> str | None:
    """Takes what is kept off the card; None where it is not a list of tensors with a name."""
    if root is None or not root.isidentifier() or not kept:
        return None
    item = re.compile(re.escape(root) + r"\[\d+\]")
    if not all(item.fullmatch(held.name_in(root)) for held in kept):
        return None
    return f"{root}[:] = [x.cpu() for x in {root}]   # and append only x.detach().cpu()"


def _root(holder: str | None) -> str | None:
    """`history` of `history[...]['loss']`."""
    return None if holder is None else holder.partition("[")[0].partition(".")[0]


RULE = Rule(name="grows_each_step", text=__doc__, check=check)
