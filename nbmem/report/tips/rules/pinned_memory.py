"""Unused pinned host memory stays pinned.

What it sees
    At least 1 GiB of pinned memory that torch's host allocator holds and no tensor uses, by torch's
    own counters.
What it costs
    The host's memory, not the card's: pinned pages cannot be swapped, and a machine that has none
    left becomes slow or ends the process. Blocks are rounded up to a power of two.
Do instead
    Fewer DataLoader workers or a smaller prefetch with `pin_memory=True`; give the cache back with
    `torch._C._host_emptyCache()` where torch has it.
When to ignore it
    The host has plenty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import GIB
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

LEAST = GIB


def check(e: Evidence) -> Findings:
    """Find pinned memory that the host allocator holds and no tensor uses."""
    pinned = e.fact("pinned")
    if not pinned or pinned["used"] is None or pinned["held"] - pinned["used"] < LEAST:
        return
    idle = pinned["held"] - pinned["used"]
    yield RULE.finding(
        title=f"{fmt(idle)} of pinned host memory are held and not used",
        evidence=f"torch holds {fmt(pinned['held'])} of pinned host memory, of which tensors use "
        f"{fmt(pinned['used'])}. It is the host's, not the card's.",
        saves=exact(idle),
        code="import torch\n\ntorch._C._host_emptyCache()   # what no tensor uses, once",
    )


RULE = Rule(name="pinned_memory", text=__doc__, check=check)
