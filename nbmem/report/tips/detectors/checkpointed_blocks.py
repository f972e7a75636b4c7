"""Estimate what checkpointing of a model's blocks would save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nbmem.report.analysis.block_activations import BlockActivations
    from nbmem.report.tips.evidence import Evidence


def checkpointing_saving(e: Evidence, found: BlockActivations) -> tuple[int, int]:
    """Return by how much checkpointed blocks lower the peak, as a range.

    One block at a time is recomputed, and each keeps its input, which is at most as large as what
    it saves first.
    """
    size = e.card_ledger.allocations.block
    most = max(int(size[rows].sum()) for rows in found.blocks)
    rest = np.setdiff1d(found.rows, found.first)
    return e.peak_saving(rest) - most, e.peak_saving(found.rows)
