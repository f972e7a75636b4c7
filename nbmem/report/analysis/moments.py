"""Describe positions in a card's ledger by time, phase and line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.report.analysis.lifetimes import stack_line
from nbmem.report.model import Moment

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger


def times_at(card_ledger: CardLedger, positions: Ints, t0_ns: int) -> Ints:
    """Return positions' times in nanoseconds since the recording began.

    Position 0 is at time 0.

    Args:
        card_ledger: The card's ledger.
        positions: Indices of the next event, ascending.
        t0_ns: Start of the recording, nanoseconds since the epoch. Clocks differ slightly: times
            before it, or before an earlier position, are moved to that time.
    """
    since = np.maximum.accumulate(np.maximum(card_ledger.times(positions) - t0_ns, 0))
    return np.where(positions == 0, 0, since)


class PhaseAndStep(NamedTuple):
    """The phase of a position and its step; None outside of one."""

    phase: str | None
    step: int | None


def phase_at(card_ledger: CardLedger, position: int) -> PhaseAndStep:
    """Return the phase and step of the last event before a position."""
    index = int(card_ledger.phases.of(np.array([position - 1], np.int64))[0])
    if index < 0:
        return PhaseAndStep(None, None)
    span = card_ledger.phases.spans[index][1]
    return PhaseAndStep(span.name, span.step)


def moment_at(card_ledger: CardLedger, position: int, t0_ns: int) -> Moment:
    """Describe the last event before a position.

    Args:
        card_ledger: The card's ledger.
        position: Index of the next event.
        t0_ns: Start of the recording, nanoseconds since the epoch.
    """
    events = card_ledger.trace.events
    stack = int(events.stack[position - 1]) if position else -1
    phase, step = phase_at(card_ledger, position)
    return Moment(
        event=position,
        t_ns=int(times_at(card_ledger, np.array([position]), t0_ns)[0]),
        phase=phase,
        step=step,
        line=stack_line(card_ledger, stack),
    )
