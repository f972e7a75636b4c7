"""Another process holds a part of the card.

What it sees
    Bytes of other processes (by name where the driver and the machine tell; a kernel by its
    notebook) where memory is short here.
What it costs
    What they hold, for as long as they live: an idle kernel of another notebook keeps its tensors,
    its cache and its CUDA context.
Do instead
    Shut the other kernel down (Running Terminals and Kernels), or run empty_cache() in it.
When to ignore it
    It is somebody's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.report.tips.rule import Findings, Rule, exact, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.05
"""Part of the card that they must hold: a desktop's few hundred MiB are not mentioned."""
MOST_NAMES = 3


def check(e: Evidence) -> Findings:
    """Report what other processes hold at the end, the largest first."""
    if not e.card_known or not e.report.ledger_at_end.process_known:
        return
    size = e.report.ledger_at_end[Category.OTHER_PROCESSES]
    total = e.report.ledger_at_end.total_bytes
    if size < SHARE * total:
        return
    names = sorted(e.trace.other_processes.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name} {fmt(held)}" for name, held in names[:MOST_NAMES])
    who = names[0][0] if len(names) == 1 else "other processes"
    beside = (
        f"On the card beside this process: {listed}."
        if listed
        else "The driver does not name the others (common in containers)."
    )
    yield RULE.finding(
        title=f"{fmt(size)} of the card are held by {who}",
        evidence=f"{e.short or 'All tips were asked for'}. {beside} Who holds memory "
        "keeps it until it is shut down.",
        saves=exact(size),
    )


RULE = Rule(name="other_process", text=__doc__, check=check, when="short")
