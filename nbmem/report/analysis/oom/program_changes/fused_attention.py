"""Try fused attention on a failed step of a model with eager attention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.eager_attention import eager_attention, grouped_attention
from nbmem.report.analysis.oom.continuations.continuation import LIVE, NEVER, FutureBlock
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.trial import Outcome, Trial


_KERNEL = ("integrations", "sdpa_attention.py")
"""The file of transformers that calls torch's attention."""


def fused_attention(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield fused attention, where eager attention's matrices live.

    Of what is only expected of the step, the part goes that the matrices are of what it has saved.
    """
    failing = _is_in_attention(trial)
    found = eager_attention(trial.case.card_ledger)
    if found is None and failing:
        found = grouped_attention(trial.case.card_ledger)
    if found is None:
        return
    live = np.intersect1d(found.rows, trial.rows(*Category))
    kept = trial.new_rows(Category.ACTIVATIONS)
    size, failed = trial.bytes_of(live), trial.case.size if failing else 0
    saved = max(trial.bytes_of(kept) + failed, 1)
    rest = 1 - min((trial.bytes_of(np.intersect1d(live, kept)) + failed) / saved, 1.0)
    rows, removed = {*found.rows.tolist()}, {*live.tolist()}
    block_sizes = {int(trial.case.card_ledger.allocations.requested[row]) for row in rows}
    if failing:
        block_sizes.add(failed)
        size += failed

    def change(block: FutureBlock) -> FutureBlock | None:
        if block.requested_at == LIVE:
            return None if block.row in removed else block
        if block.row in rows or block.size in block_sizes:
            return block._replace(size=1)
        if block.row < 0 and block.of_batch and not block.behind:
            return block._replace(size=max(1, int(block.size * rest)))
        return block

    then = trial.then.changed(change)
    mask = FutureBlock(-0.5, NEVER, found.mask_bytes, trial.case.stream, -1)
    yield (
        Finding(
            rule="eager_attention",
            title=f"Use fused attention: about {format_bytes(size)} less",
            evidence=f"{found.why} writes scores of {_pairs(found.positions)} for each head; a "
            "fused kernel writes none.",
            **estimated(size),
            code=found.code,
        ),
        trial.now(freed=live.tolist(), then=then.changed_to((*then.blocks, mask))),
    )


def _is_in_attention(trial: Trial) -> bool:
    """Return whether the request failed in torch's attention."""
    seen = trial.case.refusal
    return seen is not None and any(
        PurePath(frame.file).parts[-2:] == _KERNEL for frame in seen.stack
    )


def _pairs(positions: int) -> str:
    return f"{positions:,} x {positions:,} positions" if positions else "each pair of positions"
