"""Try fused attention on a failed step of a model with eager attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.eager_attention import eager_attention
from nbmem.report.analysis.oom.continuations.continuation import LIVE, NEVER, FutureBlock
from nbmem.report.model import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.analysis.oom.trial import Outcome, Trial


def fused_attention(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield fused attention, where eager attention's matrices live.

    Of what is only expected of the step, the part goes that the matrices are of what it has saved.
    """
    found = eager_attention(trial.case.card_ledger)
    if found is None:
        return
    live = np.intersect1d(found.rows, trial.rows(*Category))
    kept = trial.new_rows(Category.ACTIVATIONS)
    size, saved = trial.bytes_of(live), max(trial.bytes_of(kept), 1)
    rest = 1 - min(trial.bytes_of(np.intersect1d(live, kept)) / saved, 1.0)
    rows, gone = {*found.rows.tolist()}, {*live.tolist()}
    block_sizes = {int(trial.case.card_ledger.allocations.requested[row]) for row in rows}

    def change(block: FutureBlock) -> FutureBlock | None:
        if block.born == LIVE:
            return None if block.row in gone else block
        if block.row in rows or block.size in block_sizes:
            return block._replace(size=1)
        if block.row < 0 and block.of_batch:
            return block._replace(size=max(1, int(block.size * rest)))
        return block

    then = trial.then.changed(change)
    mask = FutureBlock(-0.5, NEVER, found.mask_bytes, trial.case.stream, -1)
    yield (
        Finding(
            rule="eager_attention",
            title=f"Fused attention in place of eager: about {format_bytes(size)} less",
            evidence=f"Eager attention writes scores of {found.positions:,} x {found.positions:,} "
            "positions for each head; torch's fused one writes none.",
            low=size,
            high=size,
            ground="estimated",
            code=found.code,
        ),
        trial.now(freed=live.tolist(), then=then.changed_to((*then.blocks, mask))),
    )
