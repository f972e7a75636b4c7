"""DeepSpeed's gradient bucket is larger than all gradients together.

What it sees
    ZeRO's buffer of `reduce_bucket_size` elements, by default 500,000,000 (954 MiB in bfloat16)
    however small the model is, where the model has fewer parameters that learn.
What it costs
    What no gradient ever fills: in ZeRO-1 and 2 while backward runs, in ZeRO-3 all the time.
Do instead
    `"reduce_bucket_size"`: as many elements as the model has, in the `"zero_optimization"` of
    DeepSpeed's configuration. Gradients are sent as often as before: once.
When to ignore it
    The card has room, and the model will grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import ZERO_BUCKET
from nbmem.report.analysis.fsdp_gathers import Move, allocated_with
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.1
_ALIGNED = 512
"""Block sizes of the allocator are multiples of it."""


def check(e: Evidence) -> Findings:
    """Compute the peak with buckets that all gradients fill."""
    told = next((m["zero"] for m in e.modules if m.get("zero")), None)
    if told is None or not 0 < told["gradients"] < told["bucket"]:
        return
    moves = list(_fitted_buckets(e, told["bucket"], told["gradients"]))
    if not moves:
        return
    now = int(e.card_ledger.allocated.max())
    saved = now - int(allocated_with(e.card_ledger, moves).max())
    if not (e.dominates(saved, SHARE) or (e.worth(saved) and (e.short or e.everything))):
        return
    size = max(int(e.card_ledger.allocations.requested[move.row]) for move in moves)
    yield RULE.finding(
        title=f"A smaller `reduce_bucket_size` in DeepSpeed: {fmt(saved)} less",
        evidence=f"A bucket of gradients takes {fmt(size)}, for {told['bucket']:,} elements, and "
        f"all gradients together have {told['gradients']:,}. The peak is {fmt(now)}, and "
        f"{fmt(now - saved)} with a bucket that they fill.",
        saves=simulated(saved),
        code="# in DeepSpeed's configuration, by whatever name your program has for it\n"
        f'config["zero_optimization"]["reduce_bucket_size"] = {told["gradients"]:_}',
    )


def _fitted_buckets(e: Evidence, bucket: int, gradients: int) -> Iterator[Move]:
    """Yield buckets of the configured size, fitted to the gradients."""
    a = e.card_ledger.allocations
    for row in np.flatnonzero(e.card_ledger.category == Category.COMMUNICATION).tolist():
        size = int(a.requested[row])
        if ZERO_BUCKET in (e.card_ledger.name(row) or "") and size % bucket == 0:
            fits = -(-size // bucket * gradients // _ALIGNED) * _ALIGNED
            yield Move(row, int(a.allocated_at[row]), int(a.freed[row]), fits)


RULE = Rule(name="zero_bucket", text=__doc__, check=check)
