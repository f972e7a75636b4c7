"""Recognize a loaded checkpoint by the sizes of its tensors.

A loading function has returned when the first forward shows which tensors are weights, and most
recordings have no stacks. So only the order identifies a checkpoint: torch.load creates a file's
tensors in the order of the model's weights, and they are freed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.tips.weight_names import OWNED

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

MIN_TENSORS = 4
"""Tensors of a checkpoint below which equal sizes may be a coincidence."""
MIN_SHARE = 0.9
"""Share of the weights' bytes that a checkpoint must have."""


def copies_of_weights(e: Evidence) -> Ints:
    """Return allocations with the sizes of the weights, in their order.

    They were allocated after the weights and before the first forward, lived together, and were
    freed with no allocation in between. Empty if there are too few of them.
    """
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    none = np.zeros(0, np.int64)
    early = card_ledger.phases.named(card_ledger.born_in, "load") & (a.allocated_at >= 0)
    weights = np.flatnonzero(early & (card_ledger.category == Category.WEIGHTS))
    if len(weights) < MIN_TENSORS:
        return none
    others = early & (a.freed < card_ledger.events) & ~np.isin(card_ledger.category, OWNED)
    others &= a.allocated_at > a.allocated_at[weights].max()
    found = _in_order(a.requested[weights], np.flatnonzero(others), a.requested)
    enough = a.block[found].sum() >= MIN_SHARE * a.block[weights].sum()
    if len(found) < MIN_TENSORS or not enough or a.freed[found].min() < a.allocated_at[found].max():
        return none
    between = (a.allocated_at > a.freed[found].min()) & (a.allocated_at < a.freed[found].max())
    return none if between.any() else found


def _in_order(wanted: Ints, rows: Ints, sizes: Ints) -> Ints:
    """Return the rows whose sizes follow the wanted ones, from first to last.

    A wanted size that none of the next rows has is left out (a tied weight).
    """
    found, at = [], 0
    for size in wanted.tolist():
        match = np.flatnonzero(sizes[rows[at:]] == size)
        if len(match):
            found.append(int(rows[at + match[0]]))
            at += int(match[0]) + 1
    return np.array(found, np.int64)
