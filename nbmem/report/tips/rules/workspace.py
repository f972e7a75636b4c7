"""The workspaces of cuBLAS are large against what is free.

What it sees
    Workspaces that cuBLAS keeps (one for each thread that computes: forward and backward) and that
    are a quarter or more of what the card had left, where memory is short.
What it costs
    32 MiB each on Hopper and newer, 8 MiB on older cards, until the process ends.
Do instead
    `CUBLAS_WORKSPACE_CONFIG=:16:8` before torch touches the card.
When to ignore it
    Matrix products may become slower: measure a step before and after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import KIB, MIB
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.25
SMALLEST = 8 * 16 * KIB
"""`:16:8` requests eight buffers of 16 KiB."""


def check(e: Evidence) -> Findings:
    """Compute what a smaller configuration of cuBLAS workspaces saves."""
    if e.fact("cublas_workspace_config") or not e.card_known:
        return
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    rows = card_ledger.live(card_ledger.events)
    kept = (card_ledger.category[rows] == Category.WORKSPACE) & (a.requested[rows] > MIB)
    size = int(a.block[rows[kept]].sum())
    saves = size - int(np.count_nonzero(kept)) * SMALLEST
    free = e.fullest[Category.FREE]
    if not e.worth(saves) or not (e.everything or saves >= SHARE * free):
        return
    yield RULE.finding(
        title=f"`CUBLAS_WORKSPACE_CONFIG=:16:8` gives back {fmt(saves)}",
        evidence=f"{np.count_nonzero(kept)} workspaces of cuBLAS hold {fmt(size)}; "
        f"{fmt(free)} of the card were free when most was reserved.",
        saves=simulated(saves),
        code='import os\n\nos.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"   '
        "# before torch touches the card",
    )


RULE = Rule(name="workspace", text=__doc__, check=check, when="short")
