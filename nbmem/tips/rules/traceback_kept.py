"""The traceback of a failed cell keeps the tensors of its frames.

What it sees
    Tensors that only `sys.last_traceback`, `sys.last_exc` or IPython's own copy of them reaches:
    locals of the functions that ran when a cell failed or was interrupted.
What it costs
    Their bytes, until another cell fails; so the same cell, run again, runs out of memory again.
Do instead
    `%nbmem free traceback`. `del sys.last_traceback` is not enough: IPython keeps a copy.
When to ignore it
    You are about to use `%debug` on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.holders import HolderKind
from nbmem.report import Command, Finding
from nbmem.tips.rule import Rule, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.tips.evidence import Evidence


def check(e: Evidence) -> Iterator[Finding]:
    """What only a traceback keeps, also through the graph of one of its locals."""
    mine = e.only_in(HolderKind.TRACEBACK)
    freed = e.freed_with(mine)
    if e.worth(freed):
        largest = max(mine, key=lambda s: s.size)
        yield Finding(
            rule=RULE.name,
            title=f"`%nbmem free traceback` gives back {say(freed)} of the cell that failed",
            evidence=f"{len(mine)} tensors live only in the frames of a traceback; the largest is "
            f"{largest.name}, {say(largest.size)}.",
            low=freed,
            high=freed,
            ground="exact",
            command=Command(name="free", arguments=("traceback",)),
        )


RULE = Rule(name="traceback_kept", text=__doc__, check=check)
