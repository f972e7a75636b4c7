"""The batch must shrink to fit, or can grow.

What it sees
    An out-of-memory error that ended the run: the batch with which the simulator runs through the
    rest of the step and one more. It is a lower bound; `nbmem fit` finds the largest one. If all
    tips are asked for: what a sample takes at the peak, and how much of the card is left.
What it costs
    Too large: the run ends. Too small: the card computes less than it could.
Do instead
    The batch that is named; accumulate gradients to keep the effective batch.
When to ignore it
    Something else holds the card (a traceback, another kernel): free that first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.report.analysis.program_names import batch_size_code
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

FIXED = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.WORKSPACE,
    Category.COMMUNICATION,
)
"""Categories that do not depend on the batch."""
EMPTY = 0.25
"""Below this used part of the card, the rule card_empty applies."""
SAFE = 0.95
"""Part of the room that a proposal uses: the next batch may be slightly different."""


def check(e: Evidence) -> Findings:
    """Propose a larger batch if all tips are requested."""
    if e.ran_out or not (e.everything and e.card_known):
        return
    room = largest_batch(e)
    full = e.fullest
    if room is None or full.used < EMPTY * full.total_bytes:
        return
    rows, most, each = room
    if most > rows:
        yield RULE.finding(
            title=f"The batch can grow from {rows} to about {most}",
            evidence=f"A sample takes about {fmt(each)} at the peak; "
            f"{fmt(full.total_bytes - full.used)} of the card were free when most was "
            "reserved.",
            saves=estimated(0, (most - rows) * each),
            code=batch_size_code(e.session, rows, most),
        )


def largest_batch(e: Evidence) -> tuple[int, int, int] | None:
    """Return rows now, rows that fit and bytes per row, or None.

    None if the rows are not known.
    """
    rows = max((c["rows"] or 0 for c in e.calls), default=0)
    peak = e.report.ledger_at_peak
    if not rows or not e.phases("forward", "inference"):
        return None
    fixed = sum(peak[c] for c in FIXED)
    overhead = max(1.0, e.report.peak.reserved / max(1, e.report.peak.active))
    each = int(overhead * (peak.active - fixed) / rows)
    room = SAFE * (e.fullest.total_bytes - e.fullest.outside) - overhead * fixed
    return (rows, int(room / each), each) if each > 0 and room > 0 else None


RULE = Rule(name="batch_size", text=__doc__, check=check, has_price=True)
