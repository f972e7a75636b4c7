"""A checkpoint was loaded onto the card before the model copied it.

What it sees
    Tensors that torch.load made on the card and that were gone again before the end (it needs
    stacks: `%%memtrace --stacks`).
What it costs
    While it loads, the card holds the weights twice. Often that is the highest moment of a run that
    only predicts; and the segments taken for it stay reserved.
Do instead
    `torch.load(path, map_location="cpu")`; with `mmap=True` it does not fill the host either.
When to ignore it
    The peak of the run lies elsewhere and its reserved bytes are used again later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.model import Finding
from nbmem.report.tips.rule import Rule, fmt
from nbmem.report.tips.rules.checkpoint_kept import by_torch_load, line_of_load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Iterator[Finding]:
    """Find what torch.load made and that was freed later.

    It is reported if it made the peak, if memory is short, or if all tips are requested.
    """
    a = e.card_ledger.allocations
    loaded = e.rows_with_stack(by_torch_load)
    loaded = loaded[(a.freed[loaded] < e.card_ledger.events) & (a.allocated_at[loaded] >= 0)]
    loaded = loaded[~np.isin(e.card_ledger.category[loaded], (Category.WEIGHTS, Category.BUFFERS))]
    if not len(loaded):
        return
    at = int(a.allocated_at[loaded].max()) + 1
    there = loaded[(a.allocated_at[loaded] < at) & (a.freed[loaded] >= at)]
    size = int(a.block[there].sum())
    at_peak = e.report.peak.allocated - e.peak_without(there)
    if not e.worth(size) or not (e.worth(at_peak) or e.short or e.everything):
        return
    where = line_of_load(e, int(there[0]))
    yield Finding(
        rule=RULE.name,
        title=f'Load the checkpoint with map_location="cpu": {fmt(size)} less while it loads',
        evidence=f"torch.load made {len(there)} tensors on the card{where}"
        f"; they held {fmt(size)} beside the model's own weights and were freed later. "
        f"At the peak that is {fmt(at_peak)}.",
        low=at_peak,
        high=size,
        ground="exact",
        code=f'#{where or " next time"}: torch.load(..., map_location="cpu", mmap=True)',
    )


RULE = Rule(name="checkpoint_on_gpu", text=__doc__, check=check)
