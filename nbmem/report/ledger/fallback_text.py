"""Print a recording's figures with as little code as possible.

They replace a view that could not be made. They are whole bytes without arithmetic, so only the
figures themselves can fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import LABELS, Category
from nbmem.core.session.events import BlockState

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceTrace
    from nbmem.report.ledger.balance import Ledger


def ledger_lines(peak: Ledger, end: Ledger) -> str:
    """Format the bytes by category at the peak and at the end.

    Categories that are empty at both are left out.
    """
    lines = [f"  {'bytes at the peak':>20}  {'at the end':>20}"]
    lines += [
        f"  {peak.held[category]:>20,}  {end.held[category]:>20,}  {LABELS[category]}"
        for category in Category
        if peak.held[category] or end.held[category]
    ]
    lines.append(f"  {peak.total_bytes:>20,}  {end.total_bytes:>20,}  = the card")
    return "\n".join(lines)


def counter_lines(trace: DeviceTrace) -> str:
    """Format the counters read of a card whose ledger cannot be made.

    For a recording without readings (a snapshot of the user's own) the state at its end is
    formatted.
    """
    if len(trace.counter_samples):
        counter_samples = trace.counter_samples
        rows = [
            ("allocated", int(counter_samples.allocated.max()), int(counter_samples.allocated[-1])),
            ("reserved", int(counter_samples.reserved.max()), int(counter_samples.reserved[-1])),
        ]
        lines = [f"  {'highest bytes read':>20}  {'last read':>20}"]
        lines += [f"  {high:>20,}  {last:>20,}  {name}" for name, high, last in rows]
        return "\n".join(lines)
    blocks, segments = trace.end.blocks, trace.end.segments
    allocated = int(blocks.size[blocks.state == BlockState.ALLOCATED].sum())
    return "\n".join(
        (
            f"  {'bytes at the end':>20}",
            f"  {allocated:>20,}  allocated",
            f"  {int(segments.size.sum()):>20,}  reserved",
        )
    )
