"""The card is almost empty.

What it sees
    A training or prediction run that never used a quarter of the card. It is told only to those who
    ask for all tips: there is nothing wrong with room.
What it costs
    Time: a larger batch keeps more of the GPU busy.
Do instead
    Raise the batch (and the learning rate with it) until the time for a sample no longer falls; or
    rent a smaller card.
When to ignore it
    The model does not learn better or faster with larger batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.report.analysis.program_names import batch_size_code
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt
from nbmem.report.tips.rules.batch_size import EMPTY, largest_batch

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find how far the batch can grow on an almost empty card."""
    full, room = e.fullest, largest_batch(e)
    if not e.card_known or room is None or full.used >= EMPTY * full.total_bytes:
        return
    rows, most, each = room
    if most > rows:
        yield RULE.finding(
            title=f"{100 * full.used / full.total_bytes:.0f}% of the card was used: the batch can "
            f"grow from {rows} to about {most}",
            evidence=f"{fmt(full.total_bytes - full.used)} were free when most was reserved; a "
            f"sample takes about {fmt(each)} at the peak.",
            saves=estimated(0, (most - rows) * each),
            code=batch_size_code(e.session, rows, most),
        )


RULE = Rule(name="card_empty", text=__doc__, check=check, when="asked", last_resort=True)
