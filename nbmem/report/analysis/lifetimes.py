"""Lifetimes of allocations, and the pool's layout, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import LIVE, Category
from nbmem.report.analysis.pool_history import pool_history
from nbmem.report.analysis.source_lines import users_line, users_stack
from nbmem.report.analysis.visible_phases import visible_spans
from nbmem.report.exploration import CellSpan, Details, Lifetime

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

LIVES = 800
"""Allocations that are listed individually; the others are counted."""
AT_PEAK, AT_END, AT_MOMENT = 160, 80, 8
"""Of those, the numbers of largest ones at the peak, at the end, and at moments spread between."""
SPREAD = 48
"""Number of these moments."""

HOLDERS, FRAMES = 12, 24
"""Most holders of an allocation, and most lines of its stack, that are listed."""

MAX_PIECES = 60_000
"""Pieces in the pool's map at all moments together: about 30 kB in a notebook."""


def details(card_ledger: CardLedger, moments: Ints, peak: int, t0_ns: int) -> Details:
    """Gather what the views need of moments and single allocations.

    Args:
        card_ledger: The card's ledger.
        moments: Positions of the timeline.
        peak: Position of the recording's peak.
        t0_ns: Start of the recording, nanoseconds since the epoch.
    """
    spans = visible_spans(card_ledger, peak)
    return Details(
        phases=tuple(card_ledger.bounds(span) for span in spans),
        cells=tuple(
            CellSpan(
                name=span.name,
                t0_ns=span.t0_ns - t0_ns,
                t1_ns=span.t1_ns - t0_ns,
                first=first,
                last=last,
            )
            for span in card_ledger.session.spans
            if span.kind == "cell"
            for first, last in (card_ledger.bounds(span),)
        ),
        live=live_counts(card_ledger, moments),
        lines=lines_at(card_ledger, moments),
        lives=chosen_lifetimes(card_ledger, peak),
        pool=pool_history(card_ledger, moments, most=MAX_PIECES),
    )


def live_counts(card_ledger: CardLedger, positions: Ints) -> Ints:
    """Count the live allocations by position and live category.

    The shape is (n, len(LIVE)).
    """
    a = card_ledger.allocations
    table = np.zeros((len(positions), len(LIVE)), np.int64)
    for category in LIVE:
        rows = np.flatnonzero(card_ledger.category == category)
        table[:, category] = np.searchsorted(np.sort(a.allocated_at[rows]), positions)
        table[:, category] -= np.searchsorted(np.sort(a.freed[rows]), positions)
    return table


def chosen_lifetimes(card_ledger: CardLedger, peak: int) -> tuple[Lifetime, ...]:
    """Return the lifetimes of the allocations that matter most.

    The largest at the peak, at the end and at moments between are chosen first.

    The rest is chosen by bytes times lifetime, which is the area in the picture.
    """
    return lifetimes_of(card_ledger, chosen_rows(card_ledger, peak).tolist())


def chosen_rows(card_ledger: CardLedger, peak: int, most: int = LIVES) -> Ints:
    """Choose at most `most` allocations, sorted by allocation time."""
    a = card_ledger.allocations
    if len(a) <= most:
        return np.arange(len(a), dtype=np.int64)
    wanted: dict[int, None] = {}
    moments = [(peak, AT_PEAK), (card_ledger.events, AT_END)]
    spread = np.linspace(0, card_ledger.events, SPREAD, dtype=np.int64)
    moments += [(position, AT_MOMENT) for position in spread.tolist()]
    by_size = np.argsort(-a.requested, kind="stable")
    allocated_at, freed = a.allocated_at[by_size], a.freed[by_size]
    for position, count in moments:
        largest = by_size[(allocated_at < position) & (freed >= position)][:count]
        wanted.update(dict.fromkeys(largest.tolist()))
    area = a.requested.astype(np.float64) * (
        np.minimum(a.freed, card_ledger.events) - a.allocated_at
    )
    for row in np.argsort(-area, kind="stable").tolist():
        if len(wanted) >= most:
            break
        wanted.setdefault(row)
    return np.array(sorted(list(wanted)[:most]), np.int64)


def phase_of_allocation(card_ledger: CardLedger, row: int) -> str | None:
    """Return the phase and step in which an allocation was made, or None.

    None before the recording and between phases.
    """
    return phase_text(card_ledger, int(card_ledger.born_in[row]))


def phase_at(card_ledger: CardLedger, position: int) -> str | None:
    """Return phase and step of the event before a position, or None.

    None between phases.
    """
    return phase_text(
        card_ledger, int(card_ledger.phases.of(np.array([position - 1], np.int64))[0])
    )


def phase_text(card_ledger: CardLedger, index: int) -> str | None:
    """Format a phase and its step, by the phase's index in the ledger.

    None for NOWHERE.
    """
    if index < 0:
        return None
    span = card_ledger.phases.spans[index][1]
    return span.name if span.step is None else f"{span.name}, step {span.step}"


def stack_line(card_ledger: CardLedger, stack: int) -> str | None:
    """Return the user's line of a stack, by its index, or None.

    None if no stack was taken.
    """
    return users_line(card_ledger.session.stacks[stack]) if stack >= 0 else None


def lifetime_of(card_ledger: CardLedger, row: int) -> Lifetime:
    """Return the lifetime of one allocation."""
    (found,) = lifetimes_of(card_ledger, [row])
    return found


def lifetimes_of(card_ledger: CardLedger, rows: Sequence[int]) -> tuple[Lifetime, ...]:
    """Return the lifetimes of some allocations."""
    held = card_ledger.storages
    holders = {
        storage.addr: tuple(holder.path for holder in storage.holders[:HOLDERS]) for storage in held
    }
    return tuple(_life(card_ledger, row, holders) for row in rows)


def _life(card_ledger: CardLedger, row: int, holders: Mapping[int, tuple[str, ...]]) -> Lifetime:
    a = card_ledger.allocations
    stack, freed = int(a.stack[row]), int(a.freed[row])
    return Lifetime(
        number=row,
        born=int(a.allocated_at[row]),
        freed=freed,
        name=card_ledger.name(row),
        category=Category(int(card_ledger.category[row])),
        requested=int(a.requested[row]),
        block=int(a.block[row]),
        born_in=phase_of_allocation(card_ledger, row),
        line=stack_line(card_ledger, stack),
        stack=users_stack(card_ledger.session.stacks[stack])[:FRAMES] if stack >= 0 else (),
        holders=holders.get(int(a.addr[row]), ()) if freed >= card_ledger.events else (),
    )


def lines_at(card_ledger: CardLedger, positions: Ints) -> tuple[str | None, ...]:
    """Return the user's line of the event before each position, or None.

    None if no stack was taken.
    """
    stacks = card_ledger.trace.events.stack
    return tuple(
        stack_line(card_ledger, int(stacks[position - 1])) if position else None
        for position in positions.tolist()
    )
