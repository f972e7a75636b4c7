"""Select the memory that no operator will use again, and that could go.

What the training keeps from step to step is not in it, nor what lives where little is allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.before_return import out_of_reach

if TYPE_CHECKING:
    from nbmem.core.arrays import Mask
    from nbmem.report.analysis.unused_memory import Unused
    from nbmem.report.tips.evidence import Evidence

_OF_MODELS = (Category.WEIGHTS, Category.BUFFERS)
"""What the last pass used in vain stays for the next one; only what nothing ever used is told."""
_OF_TRAINING = (
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.OUTPUT_GRADIENTS,
    Category.WORKSPACE,
    Category.COMMUNICATION,
)
"""What other rules tell of, or the training itself releases."""
_NEVER = 1 << 62
LATE = 0.9
"""Part of the recording behind which a use shows that more may follow."""
LARGEST = 1_000
"""Weights of which it is asked whether another model is loaded meanwhile, the largest ones."""
ANOTHER = 0.5
"""Part of the weights' bytes from which new weights are another model's."""
MUCH = 0.25
"""Part of the peak from which unused memory is looked at."""


def is_unused_for_good(e: Evidence, unused: Unused, replaced: Mask) -> Mask:
    """Return a mask of what is unused for good and serves no training."""
    ledger, a = e.card_ledger, e.card_ledger.allocations
    category = ledger.category[unused.rows]
    never = unused.since <= a.allocated_at[unused.rows]
    goes_on = ~out_of_reach(ledger)[unused.rows] | (np.isin(category, _OF_MODELS) & ~never)
    # What a failed request or an error has ended would have used what lived then.
    end = max(ledger.refused.failed, default=ledger.events)
    ended = e.ran_out or e.session.error is not None
    open_end = (goes_on | ended) & (a.freed[unused.rows] >= end)
    # A model that only predicts has no use for its first layers while the last ones run.
    steps = (ledger.bounds(s)[0] for _, s in ledger.phases.spans if s.name == "optimizer")
    of_step = never | (unused.since > min(steps, default=_NEVER))
    found: Mask = ~open_end & ~np.isin(category, _OF_TRAINING) & _is_at_a_peak(e, unused)
    return found & (of_step | replaced | ~np.isin(category, _OF_MODELS))


def is_of_replaced_model(e: Evidence, unused: Unused) -> Mask:
    """Return a mask of the weights that live on while another model is loaded.

    Behind their last use weights are made, half the bytes of those that live then or more, which
    are used when these are freed.
    """
    ledger, a = e.card_ledger, e.card_ledger.allocations
    of_model = np.isin(ledger.category, _OF_MODELS)
    weights = np.flatnonzero(of_model)
    made, last, block = a.allocated_at[weights], a.freed.copy(), a.block[weights]
    last[unused.rows] = unused.since
    found = of_model[unused.rows] & (a.freed[unused.rows] < ledger.events)
    found &= unused.since > a.allocated_at[unused.rows]
    candidates = np.flatnonzero(found)
    order = np.argsort(-a.block[unused.rows[candidates]], kind="stable")
    found[candidates[order[LARGEST:]]] = False
    for at in candidates[order[:LARGEST]].tolist():
        since, freed = unused.since[at], a.freed[unused.rows[at]]
        there = block[(made <= since) & (a.freed[weights] > since)].sum()
        later = block[(made > since) & (made < freed) & (last[weights] > freed)].sum()
        found[at] = later >= ANOTHER * there
    return found


def left_in_vain(e: Evidence, unused: Unused, indices: list[int]) -> list[int]:
    """Return what is left without a container that is in use until the end."""
    rows = unused.rows[indices]
    at_end = e.card_ledger.allocations.freed[rows] >= e.card_ledger.events
    last = unused.since[indices][at_end].max(initial=0)
    if last < LATE * e.card_ledger.events:
        return indices
    return [index for index, lives in zip(indices, at_end, strict=True) if not lives]


def _is_at_a_peak(e: Evidence, unused: Unused) -> Mask:
    """Return a mask of what is unused where much is allocated.

    The rest hardly lowers the peak: what is released there must not be more than remains.
    """
    curve = e.card_ledger.allocated
    high = np.append(0, np.cumsum(curve >= MUCH * curve.max()))
    until = e.card_ledger.allocations.freed[unused.rows]
    found: Mask = high[np.minimum(until, len(curve) - 1) + 1] > high[np.maximum(unused.since, 0)]
    return found
