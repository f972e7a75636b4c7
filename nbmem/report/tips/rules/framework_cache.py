"""Another framework's pool holds unused memory that torch cannot have.

What it sees
    Bytes at the end that CuPy's pool holds and no array of its uses, by its own counters: at least
    a tenth of the card, or anything worth a word where memory is short.
What it costs
    Two caches on one card: torch gives its own back before a request fails, but it knows nothing of
    CuPy's, so an out-of-memory error comes while gigabytes lie free.
Do instead
    `cupy.get_default_memory_pool().free_all_blocks()` where CuPy's part is done, or a limit for its
    pool: `cupy.get_default_memory_pool().set_limit(size=...)`. Or one pool for both: RMM, or
    `cupy.cuda.set_allocator` with an allocator that takes from torch.
When to ignore it
    CuPy goes on with arrays of the same sizes: its pool is what makes them fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.report.analysis.framework_advice import GIVES_BACK
from nbmem.report.model import Command
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

OF_THE_CARD = 0.1
"""Part of a card with room that must be unused."""


def check(e: Evidence) -> Findings:
    """Find unused memory at the end in pools that can give it back."""
    for share in e.report.ledger_at_end.owners:
        if share.name in GIVES_BACK and e.matters(share.cached, OF_THE_CARD):
            yield RULE.finding(
                title=f"{share.label}'s pool can give back {fmt(share.cached)} that it does not "
                "use",
                evidence=f"It holds {fmt(share.held)} of the card at the end, of which "
                f"{fmt(share.held - share.cached)} are in use. torch cannot have the rest, not "
                "even where a request fails.",
                saves=exact(share.cached),
                code=GIVES_BACK[share.name],
                command=Command(name="free", arguments=("frameworks",)),
            )


RULE = Rule(name="framework_cache", text=__doc__, check=check)
