"""Memory that lives on although no operator uses it any more.

Only a virtual card tells what operators use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.report.ledger.observations import rows_at

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.ledger.card_ledger import CardLedger


class Unused(NamedTuple):
    """Allocations that live on behind their last use.

    Attributes:
        rows: The allocations, ascending.
        since: The position right behind the last use of each; where it was allocated if nothing
            has used it.
        in_backward: Whether a backward has used each.
    """

    rows: Ints
    since: Ints
    in_backward: Mask


def unused_memory(card_ledger: CardLedger) -> Unused:
    """Return what lives on behind its last use; empty if that is unknown."""
    uses = card_ledger.trace.last_uses
    if uses is None:
        none = np.empty(0, np.int64)
        return Unused(none, none, none.astype(bool))
    rows = rows_at(card_ledger.allocations, uses.addr, uses.made, card_ledger.events)
    known = np.flatnonzero(rows >= 0)
    order = known[np.argsort(rows[known])]
    made = uses.made[order]
    since = np.where(uses.last[order] == made, made - 1, uses.last[order])
    return Unused(rows[order], since, uses.in_backward[order] == 1)
