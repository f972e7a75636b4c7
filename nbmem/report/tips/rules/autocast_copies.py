"""Autocast keeps a copy of the weights through an inference.

What it sees
    An inference under autocast with float32 weights, and nothing that trains. Autocast caches a
    copy of each weight in half its bytes until its block ends.
What it costs
    Half of the weights' bytes, beside the weights.
Do instead
    `model.half()` or `model.to(torch.bfloat16)`, without autocast: the weights take half, and there
    are no copies. Or `torch.autocast("cuda", cache_enabled=False)`: one copy at a time, made anew
    in each call.
When to ignore it
    Parts of the model need float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.tensor_names import AUTOCAST_COPY
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find autocast's copies of weights at the peak of an inference."""
    if e.trains or any(call["grad"] for call in e.calls):
        return  # a step needs the weights in float32
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    texts = [i for i, text in enumerate(card_ledger.texts) if text.startswith(AUTOCAST_COPY)]
    mine = np.flatnonzero(np.isin(card_ledger.names, texts))
    rows = mine[e.live_at_peak(mine)]
    if not len(rows):
        return
    high = e.peak_saving(mine)
    largest = int(a.block[rows].max())
    low = high - 2 * largest  # one at a time, with its bias
    if not e.is_large_part(low):
        return
    held = int(a.block[rows].sum())
    yield RULE.finding(
        title=f"`cache_enabled=False`: {fmt_range(low, high)} less at the peak, which autocast's "
        "copies of the weights take",
        evidence=f"{len(rows)} copies are {fmt(held)} of the peak, the largest "
        f"{card_ledger.name(int(rows[np.argmax(a.block[rows])]))}. `{e.model_name()}.half()` in "
        "place of autocast saves them and half of the weights.",
        saves=estimated(low, high),
        code='torch.autocast("cuda", cache_enabled=False)',
    )


RULE = Rule(name="autocast_copies", text=__doc__, check=check)
