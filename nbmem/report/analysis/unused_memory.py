"""Memory that no operator uses any more, and what is used in part.

Only a virtual card tells what operators use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.session import PARTLY
from nbmem.report.ledger.observations import rows_at

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.ledger.card_ledger import CardLedger

LEAST_PART = 512
"""Bytes from which a part was chosen. Less is a number that an operator leaves in the memory of
what it has summed up, as `mse_loss` does:
 https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/Loss.cpp"""
AT_ONCE = 8
"""Most events between the last use of a chosen tensor and its release. What lives on has another
purpose."""


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


class PartlyUsed(NamedTuple):
    """Allocations that operators used in small part, and freed then.

    Attributes:
        rows: The allocations, ascending.
        used: The bytes of each that were used.
    """

    rows: Ints
    used: Ints


def partly_used(card_ledger: CardLedger) -> PartlyUsed:
    """Return what was used in part, and then freed; empty if that is unknown."""
    uses, a = card_ledger.trace.block_uses, card_ledger.allocations
    if uses is None:
        return PartlyUsed(*[np.empty(0, np.int64)] * 2)
    rows = rows_at(a, uses.addr, uses.made, card_ledger.events)
    such = (rows >= 0) & (uses.used >= LEAST_PART)
    such &= (a.freed[rows] < card_ledger.events) & (a.freed[rows] <= uses.last + AT_ONCE)
    such &= uses.used < PARTLY * a.requested[rows]
    order = np.flatnonzero(such)
    order = order[np.argsort(rows[order])]
    return PartlyUsed(rows[order], uses.used[order])


def unused_memory(card_ledger: CardLedger) -> Unused:
    """Return what lives on behind its last use; empty if that is unknown."""
    uses = card_ledger.trace.block_uses
    if uses is None:
        none = np.empty(0, np.int64)
        return Unused(none, none, none.astype(bool))
    rows = rows_at(card_ledger.allocations, uses.addr, uses.made, card_ledger.events)
    known = np.flatnonzero(rows >= 0)
    order = known[np.argsort(rows[known])]
    made = uses.made[order]
    since = np.where(uses.last[order] == made, made - 1, uses.last[order])
    return Unused(rows[order], since, uses.in_backward[order] == 1)
