"""Reduce millions of events to points on a screen without losing peaks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import Action
from nbmem.report.analysis.moments import times_at
from nbmem.report.model import Timeline

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

BINS = 400
"""Intervals of the timeline; each retains its extremes of allocated and peak of reserved."""
MAX_PHASES = 100


def timeline(card_ledger: CardLedger, t0_ns: int, bins: int = BINS) -> Timeline:
    """Build the curves of a recording.

    Args:
        card_ledger: The card's ledger.
        t0_ns: Start of the recording, nanoseconds since the epoch.
        bins: Number of intervals, each of which retains its extremes.
    """
    positions = chosen_positions(card_ledger, bins)
    return Timeline(
        t_ns=times_at(card_ledger, positions, t0_ns),
        event=positions,
        held=card_ledger.held(positions),
        reserved=card_ledger.reserved[positions],
        parts=card_ledger.parts(positions),
        bands=tuple(
            (span.t0_ns - t0_ns, span.t1_ns - t0_ns, span.name, span.step)
            for _, span in card_ledger.phases.spans
        ),
    )


def chosen_positions(card_ledger: CardLedger, bins: int = BINS) -> Ints:
    """Choose positions that keep the extremes of every stretch.

    The start, the end, and the bounds and peaks of the first phases are included, too. Short
    recordings retain every position. Positions ascend.
    """
    n = card_ledger.events
    if n <= 4 * bins:
        return _skip_half_frees(card_ledger, np.arange(n + 1, dtype=np.int64))
    edges = np.linspace(0, n + 1, bins + 1).astype(np.int64)
    chosen: list[int] = [0, n]
    for curve, extreme in (
        (card_ledger.allocated, np.argmax),
        (card_ledger.allocated, np.argmin),
        (card_ledger.reserved, np.argmax),
    ):
        chosen.extend(int(low + extreme(curve[low:high])) for low, high in pairwise(edges))
    for _, span in card_ledger.phases.spans[:MAX_PHASES]:
        first, last = card_ledger.bounds(span)
        chosen.extend((first, card_ledger.peak(first, last), last))
    return _skip_half_frees(card_ledger, np.array(chosen, np.int64))


def _skip_half_frees(card_ledger: CardLedger, positions: Ints) -> Ints:
    """Move positions out of the middle of a free, where it seems pending.

    In memory without a cache a tensor and its segment are one: positions between their events are
    left out.
    """
    events = card_ledger.trace.events
    halfway = np.zeros(card_ledger.events + 1, bool)
    halfway[1:-1] = (
        (events.action[:-1] == Action.FREE_REQUESTED)
        & (events.action[1:] == Action.FREE_COMPLETED)
        & (events.addr[:-1] == events.addr[1:])
    )
    found = np.unique(positions + halfway[positions])
    if card_ledger.trace.info.is_host:  # without a cache, a tensor and its segment are one
        found = found[card_ledger.reserved[found] == card_ledger.active[found]]
    return found
