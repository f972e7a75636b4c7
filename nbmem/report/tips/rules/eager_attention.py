"""Eager attention keeps a score for each pair of positions: fuse it.

What it sees
    A model of transformers whose attention is `eager` and whose class can use torch's fused one, or
    whose heads share keys and values where no fused kernel takes that (in float32, or on a card
    before Ampere, such as a T4). Matrices of positions x positions that are a quarter of the peak,
    or 5% of the card.
What it costs
    batch x heads x positions x positions numbers for each layer, two or three times: they grow with
    the square of the sequence.
Do instead
    `model.set_attn_implementation("sdpa")`, or `attn_implementation="sdpa"` where the model is
    made. It computes the same without these matrices, and faster. Where heads share keys and
    values, the code lets transformers repeat these, so that a fused kernel takes them.
When to ignore it
    You read the attention's weights (`output_attentions=True`), which only eager attention has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.eager_attention import eager_attention
from nbmem.report.tips.rule import Findings, Rule, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Compare the peak with that without the matrices."""
    found = eager_attention(e.card_ledger)
    if found is None:
        return
    rows = found.rows
    held = int(e.card_ledger.allocations.requested[rows[e.live_at_peak(rows)]].sum())
    rest = found.still_takes(held)
    low = e.peak_saving(rows) - rest
    high = e.peak_saving(np.concatenate([rows, found.copies]))
    if low <= 0 or not e.is_large_part(low):
        return
    yield RULE.finding(
        title=f"Fused attention: {fmt_range(low, high)} less",
        evidence=f"{found.why} writes scores of {found.positions:,} x {found.positions:,} "
        f"positions: {fmt(held)} of the {fmt(e.report.peak.allocated)} allocated at the peak."
        f" {'Repeated keys' if found.grouped else 'A mask'} may still take {fmt(rest)}.",
        saves=simulated(low, high),
        code=found.code,
    )


RULE = Rule(name="eager_attention", text=__doc__, check=check)
