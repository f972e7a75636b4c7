"""The batch must shrink to fit, or can grow.

What it sees
    An OOM: how much was missing when the request failed. If all tips are asked for: what a sample
    takes at the peak, and how much of the card is left.
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
from nbmem.report.model import Finding
from nbmem.report.tips.rule import Rule, fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

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
PASS = ("input", "forward", "backward", "inference")
"""Phases whose memory depends on the batch."""
EMPTY = 0.25
"""Below this used part of the card, the rule card_empty applies."""
SAFE = 0.95
"""Part of the room that a proposal uses: the next batch may be slightly different."""


def check(e: Evidence) -> Iterator[Finding]:
    """Propose a smaller batch after an error, or else a larger one.

    A larger one only if all tips are requested.
    """
    if e.ran_out:
        yield from _shrink(e)
    elif e.everything and e.card_known:
        room = largest_batch(e)
        full = e.fullest
        if room is not None and full.used >= EMPTY * full.total_bytes:
            rows, most, each = room
            if most > rows:
                yield Finding(
                    rule=RULE.name,
                    title=f"The batch can grow from {rows} to about {most}",
                    evidence=f"A sample takes about {fmt(each)} at the peak; "
                    f"{fmt(full.total_bytes - full.used)} of the card were free when most was "
                    "reserved.",
                    low=0,
                    high=(most - rows) * each,
                    ground="estimated",
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


def _shrink(e: Evidence) -> Iterator[Finding]:
    """Propose the largest batch that may serve the first failed request."""
    refused = e.card_ledger.refused.failed
    if not refused:
        return
    at = refused[0]
    wanted, held = int(e.trace.events.size[at]), int(e.card_ledger.allocated[at])
    limit = max(int(e.card_ledger.reserved[at]), held)
    born = _before_the_batch(e, at)
    if born is None or wanted <= 0:
        return
    fixed = born
    part = (limit - fixed) / (held + wanted - fixed) if held + wanted > fixed else 1.0
    missing = held + wanted - limit
    if not 0 < part < 1 or missing <= 0:
        return
    rows = max((c["rows"] or 0 for c in e.calls), default=0)
    most = f"from {rows} to at most {max(1, int(part * rows))}" if rows else (
        f"to at most {100 * part:.0f}% of what it was"
    )  # fmt: skip
    yield Finding(
        rule=RULE.name,
        title=f"Shrink the batch {most}: {fmt(missing)} were missing when it ran out",
        evidence=f"{fmt(wanted)} were asked for with {fmt(held)} allocated and {fmt(limit)} "
        f"reserved, {fmt(fixed)} of them before the pass began. What comes behind the request that "
        "failed needs room, too, so this is the upper bound.",
        low=missing,
        high=held + wanted - fixed,
        ground="estimated",
        code=batch_size_code(e.session, rows, max(1, int(part * rows))) if rows else None,
    )


def _before_the_batch(e: Evidence, at: int) -> int | None:
    """Return the bytes allocated when the failing pass began, or None.

    None if the request did not fail in a pass (but in a load, say).
    """
    begun = [span for _, span in e.card_ledger.phases.spans if e.card_ledger.bounds(span)[0] <= at]
    if not begun or begun[-1].name not in PASS:
        return None
    first, _ = e.card_ledger.bounds(begun[-1])
    for span in reversed(begun):
        if span.name not in PASS:
            break
        first, _ = e.card_ledger.bounds(span)
        if span.name == "input":
            break
    return int(e.card_ledger.allocated[first])


RULE = Rule(name="batch_size", text=__doc__, check=check)
