"""A reference cycle keeps tensors until the garbage collector runs.

What it sees
    Tensors that no name, frame or module reaches any more, only objects that point at each other.
What it costs
    Their bytes. The collector counts objects, not bytes of a card, so it may not run for long.
Do instead
    `import gc; gc.collect()` gives it back now. Break the cycle for good: no `self` in a closure
    that `self` keeps, a weakref to the parent, `del` of an exception that was stored.
When to ignore it
    It is small, and gone a few steps later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.holders import HolderKind
from nbmem.report.model import Finding
from nbmem.report.tips.rule import Rule, fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Iterator[Finding]:
    """Find tensors that only a reference cycle keeps."""
    mine = e.held_only_by(HolderKind.CYCLE)
    freed = e.freed_bytes(mine)
    if e.worth(freed):
        largest = max(mine, key=lambda s: s.size)
        yield Finding(
            rule=RULE.name,
            title=f"`gc.collect()` gives back {fmt(freed)} that a reference cycle keeps",
            evidence=f"Nothing reaches {len(mine)} tensors any more but objects that point at each "
            f"other; the largest hangs on {largest.name}, {fmt(largest.size)}.",
            low=freed,
            high=freed,
            ground="exact",
            code="import gc\n\ngc.collect()",
        )


RULE = Rule(name="reference_cycle", text=__doc__, check=check, anywhere=True)
