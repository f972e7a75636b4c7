"""Build a rank's row from its file, a session or a journal.

A journal is read up to its last complete line.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.files.rank_journal import CardState, Entry, Journal
from nbmem.core.session.cards import fullest
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import without_numbers, without_shape
from nbmem.report.analysis.moments import phase_at
from nbmem.report.analysis.report_builder import card_ledger_of
from nbmem.report.analysis.timeline import timeline
from nbmem.report.analysis.world.world_report import RankAtFailure, RankRow, State

if TYPE_CHECKING:
    from nbmem.core.files.rank_folder import RankFile
    from nbmem.core.session.session import Session
    from nbmem.report.ledger.card_ledger import CardLedger

BINS = 80
"""Intervals of a rank's small timeline: half as many as its picture has columns."""
SILENT_S = 10.0
"""Seconds without a line (one is due each second) after which a rank counts as silent."""
_BY_KEY = {category.key: category for category in Category}


def row_of(file: RankFile) -> RankRow:
    """Build the row of one rank from its file."""
    found = file.found
    return _of_journal(file, found) if isinstance(found, Journal) else _of_session(file, found)


def held_at(file: RankFile, t_ns: int) -> RankAtFailure:
    """Return what a rank held at a moment, or at the last one written before.

    Args:
        file: Its file.
        t_ns: The moment, nanoseconds since the epoch.
    """
    found, number = file.found, file.rank.number
    if isinstance(found, Journal):
        entry = next((e for e in reversed(found.entries) if e.t_ns <= t_ns), None)
        card = None if entry is None else fullest_of(entry)
        if entry is None or card is None:
            return RankAtFailure(rank=number, t_ns=None)
        return RankAtFailure(
            rank=number,
            t_ns=entry.t_ns,
            allocated=card.allocated,
            reserved=card.reserved,
            held={_BY_KEY[key]: size for key, size in card.known.items() if key in _BY_KEY},
            phase=entry.phase,
            step=entry.step,
        )
    if not found.devices:
        return RankAtFailure(rank=number, t_ns=None)
    card_ledger = card_ledger_of(found)
    position = int(np.searchsorted(card_ledger.trace.events.t_ns, t_ns))
    phase, step = phase_at(card_ledger, position)
    return RankAtFailure(
        rank=number,
        t_ns=t_ns,
        allocated=int(card_ledger.allocated[position]),
        reserved=int(card_ledger.reserved[position]),
        held=_held(card_ledger, position),
        phase=phase,
        step=step,
    )


def _held(card_ledger: CardLedger, position: int) -> dict[Category, int]:
    ledger = card_ledger.ledger(position)
    return {category: ledger[category] for category in Category}


def _largest(card_ledger: CardLedger, position: int) -> dict[Category, tuple[str, int]]:
    """Return the name with the most bytes of each live category.

    Layers, and the items of a list, count together.
    """
    sums: dict[Category, dict[str, int]] = {}
    for row in card_ledger.live(position).tolist():
        if (name := card_ledger.name(row)) is not None:
            named = sums.setdefault(Category(int(card_ledger.category[row])), {})
            text = without_numbers(without_shape(name))
            named[text] = named.get(text, 0) + int(card_ledger.allocations.requested[row])
    return {category: max(named.items(), key=itemgetter(1)) for category, named in sums.items()}


def _of_session(file: RankFile, session: Session) -> RankRow:
    rank = file.rank
    state: State = "failed" if rank.ended == "failed" else "finished"
    refusal = min(session.refusals, key=lambda one: one.t_ns, default=None)
    if not session.devices:
        return RankRow(
            rank=rank,
            path=file.path,
            title=session.name,
            state=state,
            device=None,
            own_peak=rank.own_peak,
            last_ns=session.created_ns,
            refusal=refusal,
            error=session.error,
        )
    card_ledger = card_ledger_of(session)
    top = card_ledger.peak(0, card_ledger.events)
    phase, step = phase_at(card_ledger, top)
    return RankRow(
        rank=rank,
        path=file.path,
        title=session.name,
        state=state,
        device=session.devices[fullest(session.devices)].info,
        allocated=int(card_ledger.allocated[top]),
        reserved=int(card_ledger.reserved.max()),
        process=card_ledger.peak_process(),
        phase=phase,
        step=step,
        held=_held(card_ledger, top),
        largest=_largest(card_ledger, top),
        own_peak=rank.own_peak,
        last_ns=rank.ended_ns or session.created_ns,
        refusal=refusal,
        error=session.error,
        timeline=timeline(card_ledger, session.created_ns, BINS),
    )


def _of_journal(file: RankFile, journal: Journal) -> RankRow:
    last = journal.entries[-1] if journal.entries else None
    device, top = None, None
    for entry in journal.entries:
        card = fullest_of(entry)
        if card is not None and (top is None or card.peak > top[1].peak):
            top = entry, card
    if top is not None:
        device = next((d for d in journal.devices if d.index == top[1].index), None)
    return RankRow(
        rank=file.rank,
        path=file.path,
        title=journal.name,
        state=state_of(file),
        device=device,
        allocated=None if top is None else top[1].peak,
        reserved=max((c.reserved for e in journal.entries for c in e.cards), default=None),
        own_peak=max((e.own for e in journal.entries if e.own is not None), default=None),
        # The counter gives the height of the peak; the line only a time by which it was reached.
        last_ns=last.t_ns if last else file.rank.started_ns,
        last_step=last.step if last else None,
        place=last.place if last else (),
        place_ns=_since(journal.entries),
        refusal=journal.refusals[0] if journal.refusals else None,
        error=journal.error,
    )


def fullest_of(entry: Entry) -> CardState | None:
    """Return the card on which a rank had held the most, or None.

    None if it had used none by then.
    """
    return max(entry.cards, key=lambda card: card.peak, default=None)


def _since(entries: tuple[Entry, ...]) -> int | None:
    """Return when the unchanged last lines of a journal began, or None.

    None without any line.
    """
    since = None
    for entry in reversed(entries):
        same = entry.place == entries[-1].place and entry.step == entries[-1].step
        if not same or entry.cards != entries[-1].cards:
            break
        since = entry.t_ns
    return since


def state_of(file: RankFile) -> State:
    """Return the state of a rank that wrote a journal."""
    ended = file.rank.ended
    if ended is not None:
        return ended
    if file.lives is False:
        return "lost"
    if file.silent_s < SILENT_S:
        return "running"
    return "silent" if file.lives else "lost"
