"""A CUDA graph is gone, and its private pool stays.

What it sees
    Whole segments, nothing of them in use, in pools that belonged to a CUDA graph or a MemPool
    which does not live any more at the end: a graph that was captured anew for another size, a
    model that was compiled with `mode="reduce-overhead"` and reset, a `del graph`.
What it costs
    All of the pool: what is free in a private pool serves no other request. Torch takes it back
    only where a request would fail without, or where the next graph is captured.
Do instead
    `torch.cuda.empty_cache()` once, behind the graph's end.
When to ignore it
    Another graph is about to be captured: torch empties its cache before each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import BlockState
from nbmem.report.model import Command
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find what empty_cache() would give back of unused private pools."""
    segments, blocks = e.trace.end.segments, e.trace.end.blocks
    dead = (segments.pool != 0) & ~np.isin(segments.pool, e.trace.kept_pools)
    home = segments.addr.searchsorted(blocks.addr, "right") - 1
    used = np.zeros(len(segments), bool)
    used[home[blocks.state != BlockState.INACTIVE]] = True
    # Of an expandable segment only pages are freed, and the cache's own tip counts them.
    free = dead & ~used & (segments.expandable == 0)
    size = int(segments.size[free].sum())
    if not e.matters(size):
        return
    gone = len(set(segments.pool[free].tolist()))
    pools = "a private pool whose user is" if gone == 1 else f"{gone} private pools whose users are"
    yield RULE.finding(
        title=f"`torch.cuda.empty_cache()` gives back {fmt(size)} of graphs that are gone",
        evidence=(
            f"{fmt(size)} at the end are whole free segments of {pools} gone; no other request is "
            "served from there. The rest of the cache goes with them."
        ),
        saves=exact(size),
        code="import torch; torch.cuda.empty_cache()",
        command=Command(name="free", arguments=("cache",)),
    )


RULE = Rule(name="dead_graph_pool", text=__doc__, check=check)
