"""`Out[]`, `_`, `__` and `___` keep tensors that a cell has shown.

What it sees
    Tensors on the card that nothing but IPython's history of results keeps: the last line of a cell
    was an expression.
What it costs
    Their bytes, until the kernel ends: `Out` keeps every result.
Do instead
    `%nbmem free out` (or `%reset -f out`). End such a line with a semicolon, or print what you want
    to see.
When to ignore it
    You use `Out[n]` or `_` later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.holders import HolderKind
from nbmem.report.model import Command
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find tensors that only IPython's history of results keeps."""
    kinds = (HolderKind.OUT, HolderKind.UNDERSCORE)
    mine = e.held_only_by(*kinds)
    freed = e.freed_bytes(mine)
    if e.worth(freed):
        names = list(dict.fromkeys(h.root for s in mine for h in s.holders if h.kind in kinds))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield RULE.finding(
            title=f"IPython's `Out` keeps {fmt(freed)}: `%nbmem free out` gives it back",
            evidence=f"{len(mine)} tensors live only because {', '.join(names[:3])}{more} still "
            "has them.",
            saves=exact(freed),
            code="%reset -f out",
            command=Command(name="free", arguments=("out",)),
        )


RULE = Rule(name="out_history", text=__doc__, check=check, anywhere=True)
