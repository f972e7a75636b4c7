"""Build the report that every view draws from a session.

A report is of one card; notes describe the others, and the private pools at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.errors import UsageError
from nbmem.core.runtime.fault_isolation import UNGUARDED, Faults
from nbmem.core.session.cards import fullest
from nbmem.core.session.categories import Category
from nbmem.core.session.events import BlockState
from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.core.session.tensor_names import is_graph_name, without_numbers
from nbmem.core.units import MIB, format_bytes
from nbmem.report.analysis.bytes_by_line import lines_of
from nbmem.report.analysis.external_storages import external_storages_note
from nbmem.report.analysis.lifetimes import details, phase_at, phase_of_allocation, stack_line
from nbmem.report.analysis.moments import moment_at
from nbmem.report.analysis.oom import autopsies, passed_over_note
from nbmem.report.analysis.timeline import timeline
from nbmem.report.analysis.verdict_facts import with_verdict_facts
from nbmem.report.analysis.visible_phases import hidden_phases_note, visible_spans
from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.report.model import Holding, Moment, Peak, PhaseRow, Report, Timeline

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.session import DeviceTrace, Session
    from nbmem.report.ledger.balance import Ledger

MIN_BYTES = MIB
"""Smaller amounts are not mentioned."""
_NOBODY = "nobody any more (empty_cache() gives back what is free)"


def private_pools(session: Session, trace: DeviceTrace) -> Iterator[str]:
    """Yield a note if graphs or MemPools hold memory of a card at the end."""
    segments, blocks = trace.end.segments, trace.end.blocks
    size: dict[int, int] = {}
    for pool, one in zip(segments.pool.tolist(), segments.size.tolist(), strict=True):
        if pool:
            size[pool] = size.get(pool, 0) + one
    if sum(size.values()) < MIN_BYTES:
        return
    home = segments.pool[segments.addr.searchsorted(blocks.addr, "right") - 1]
    used = blocks.size[(home != 0) & (blocks.state != BlockState.INACTIVE)].sum()
    users = {one["pool"]: one["users"] for one in session.facts.get("pools") or ()}
    by_user: dict[str, int] = {}
    for pool, held in size.items():
        user = users.get(str(pool), _NOBODY)
        by_user[user] = by_user.get(user, 0) + held
    listed = ", ".join(
        f"{format_bytes(held)} of {user}"
        for user, held in sorted(by_user.items(), key=lambda one: -one[1])
    )
    yield (
        f"{format_bytes(sum(size.values()))} of the reserved bytes at the end are in private "
        f"pools, {format_bytes(int(used))} of them in use: {listed}. What is free in one serves no "
        "other."
    )


def other_cards(card_ledger: CardLedger) -> tuple[str, ...]:
    """Return a sentence for each card beside the shown one, in order.

    Args:
        card_ledger: The shown card's ledger.
    """
    session = card_ledger.session
    others = (i for i, trace in enumerate(session.devices) if trace is not card_ledger.trace)
    return tuple(_sentence(CardLedger(session, index)) for index in others)


def _sentence(card_ledger: CardLedger) -> str:
    info, allocated = card_ledger.trace.info, card_ledger.allocated
    top = card_ledger.peak(0, card_ledger.events)
    phase = phase_at(card_ledger, top)
    where = f" in {phase}" if phase else ""
    return (
        f"cuda:{info.index} ({info.name}) was used, too: up to {format_bytes(int(allocated[top]))} "
        f"allocated{where}, {format_bytes(int(allocated[-1]))} at the end. Its report: "
        f"`%nbmem report --device {info.index}`, in Python `trace.report({info.index})`, in a "
        f"terminal `nbmem report FILE --device {info.index}`."
    )


LARGEST, LARGEST_GROUPS = 50, 10
"""Number of the largest holdings in a report, and of groups whose holdings are added."""
MAX_GROUPED, MAX_IN_GROUP = 1_000, 256
"""Allocations, the largest, that are grouped by name, and those of a group that is added."""
UNKNOWN_SHARE = 0.01
"""Part of the active bytes at the peak above which unknown bytes get a note."""


def build_report(session: Session, device: int | None = None) -> Report:
    """Build the report of one card from a session.

    Args:
        session: What was recorded.
        device: CUDA ordinal of the card; None for the one that held the most.

    Raises:
        UsageError: The session has no such card, or none at all.
    """
    return report_of(card_ledger_of(session, device))


def card_ledger_of(session: Session, device: int | None = None) -> CardLedger:
    """Build the ledger of one card of a session.

    Takes the arguments of `build_report` and raises the same errors.
    """
    return CardLedger(session, _index_of(session, device))


def report_of(card_ledger: CardLedger, faults: Faults = UNGUARDED) -> Report:
    """Build the report of a card from its ledger, without tips.

    Args:
        card_ledger: The card's ledger.
        faults: Collects faults and leaves out optional parts that fail; by default a fault is
            raised.
    """
    session, trace, part = card_ledger.session, card_ledger.trace, faults.part
    t0_ns, t1_ns = recorded_times(card_ledger)
    top = card_ledger.peak(0, card_ledger.events)
    at_peak, at_end = card_ledger.ledger(top), card_ledger.ledger(card_ledger.events)
    curves = part("The timeline", lambda: timeline(card_ledger, t0_ns), None)
    rows = part("The phases", lambda: _phase_rows(card_ledger, session, t0_ns, top), None)
    report = Report(
        title=session.name,
        device=trace.info,
        duration_ns=t1_ns - t0_ns,
        peak=_peak(card_ledger, top, t0_ns, faults),
        ledger_at_start=card_ledger.ledger(0),
        ledger_at_peak=at_peak,
        ledger_at_end=at_end,
        phases=rows or (),
        holdings=part("The largest tensors", lambda: _holdings(card_ledger, top), ()),
        timeline=bare_timeline(card_ledger, top, t1_ns - t0_ns) if curves is None else curves,
        events=card_ledger.events,
        dropped_events=trace.dropped,
        error=session.error,
        notes=part(
            "The notes", lambda: _notes(session, card_ledger, at_peak, at_end), session.notes
        ),
        ooms=part(
            "The explanation of the error", lambda: autopsies(card_ledger, t0_ns, faults), ()
        ),
        details=None  # they refer to the curves' moments, and to the phases by number
        if curves is None or rows is None
        else part(
            "The single tensors", lambda: details(card_ledger, curves.event, top, t0_ns), None
        ),
        lines=part("The lines of the code", lambda: lines_of(card_ledger, top), None),
        rank=session.rank,
    )
    return with_verdict_facts(report, card_ledger, faults)


def _peak(card_ledger: CardLedger, top: int, t0_ns: int, faults: Faults) -> Peak:
    """Return the highest figures, each with its moment."""
    part = faults.part
    return Peak(
        at=part("The moment of the peak", lambda: moment_at(card_ledger, top, t0_ns), None)
        or Moment(event=top, t_ns=0),
        allocated=int(card_ledger.allocated[top]),
        reserved=int(card_ledger.reserved.max()),
        active=int(card_ledger.active.max()),
        requested=int(card_ledger.requested.max()),
        process=card_ledger.peak_process(),
        reserved_at=part(
            "The moment of the most reserved bytes",
            lambda: moment_at(card_ledger, int(card_ledger.reserved.argmax()), t0_ns),
            None,
        ),
        process_at=part(
            "The moment of the largest process",
            lambda: _moment_of_process(card_ledger, t0_ns),
            None,
        ),
    )


def bare_timeline(card_ledger: CardLedger, top: int, duration_ns: int) -> Timeline:
    """Build a timeline of three moments: start, peak and end.

    Used if no curve could be made. The peak is drawn in the middle.
    """
    positions = np.array([0, top, card_ledger.events], np.int64)
    return Timeline(
        t_ns=np.array([0, duration_ns // 2, duration_ns], np.int64),
        event=positions,
        held=card_ledger.held(positions),
        reserved=card_ledger.reserved[positions],
        parts=card_ledger.parts(positions),
        bands=(),
    )


def _index_of(session: Session, device: int | None) -> int:
    ordinals = [trace.info.index for trace in session.devices]
    if not ordinals and session.error is not None:
        raise UsageError(
            f"{session.name} has no report: it ended by {session.error} before anything was "
            "allocated on a card."
        )
    if not ordinals:
        why = session.notes[0] if session.notes else "no tensor was seen while it was recorded."
        raise UsageError(
            f"{session.name} has no report: {why} "
            "Trace a cell that uses torch's tensors, on a card or on the CPU; without a card, a "
            "virtual one can be chosen (%nbmem gpu lists them)."
        )
    if device is None:
        return fullest(session.devices)
    if device not in ordinals:
        raise UsageError(
            f"Card {device} was not used while {session.name!r} was recorded; "
            f"these were: {', '.join(map(str, ordinals))}."
        )
    return ordinals.index(device)


def recorded_times(card_ledger: CardLedger) -> tuple[int, int]:
    """Return the recording's start and end, nanoseconds since the epoch."""
    session = card_ledger.session
    if session.spans:
        return session.spans[0].t0_ns, session.spans[0].t1_ns
    times = card_ledger.trace.events.t_ns
    return (int(times[0]), int(times[-1])) if len(times) else (0, 0)


def _moment_of_process(card_ledger: CardLedger, t0_ns: int) -> Moment | None:
    """Return the event at which the process was largest, or None.

    None if a reading between two events was higher.
    """
    position = card_ledger.largest_process()
    return None if position is None else moment_at(card_ledger, position, t0_ns)


def _phase_rows(
    card_ledger: CardLedger, session: Session, t0_ns: int, peak: int
) -> tuple[PhaseRow, ...]:
    spans = visible_spans(card_ledger, peak)
    bounds = [card_ledger.bounds(span) for span in spans]
    peaks = [card_ledger.peak(first, last) for first, last in bounds]
    at_peaks = card_ledger.ledgers(peaks)
    at_ends = card_ledger.ledgers([last for _, last in bounds])
    return tuple(
        PhaseRow(
            name=span.name,
            step=span.step,
            depth=int(span.parent is not None and session.spans[span.parent].kind != "cell"),
            t0_ns=span.t0_ns - t0_ns,
            t1_ns=span.t1_ns - t0_ns,
            allocated_before=int(card_ledger.allocated[first]),
            allocated=int(card_ledger.allocated[last]),
            reserved=int(card_ledger.reserved[last]),
            peak_allocated=int(card_ledger.allocated[peak]),
            peak_reserved=int(card_ledger.reserved[first : last + 1].max()),
            ledger_at_peak=at_peak,
            ledger_at_end=at_end,
        )
        for span, (first, last), peak, at_peak, at_end in zip(
            spans, bounds, peaks, at_peaks, at_ends, strict=True
        )
    )


def _holdings(card_ledger: CardLedger, position: int) -> tuple[Holding, ...]:
    a = card_ledger.allocations
    rows = _largest(card_ledger, card_ledger.live(position))
    held = {h.addr: h for h in card_ledger.storages}
    lasting = {
        row: held.get(int(a.addr[row])) for row in rows if a.freed[row] >= card_ledger.events
    }
    return tuple(
        Holding(
            name=_name(card_ledger.name(row), lasting.get(row)),
            category=Category(int(card_ledger.category[row])),
            requested=int(a.requested[row]),
            block=int(a.block[row]),
            born_in=phase_of_allocation(card_ledger, row),
            line=stack_line(card_ledger, int(a.stack[row])),
            form=found.form if (found := lasting.get(row)) else None,
            holders=found.holders if found else (),
        )
        for row in map(int, rows)
    )


def _largest(card_ledger: CardLedger, live: Ints) -> Ints:
    """Return the largest allocations, and those of the largest groups.

    A group has equal names but for numbers: the 32 layers' parts of a cache are one row.
    """
    size = card_ledger.allocations.requested
    live = live[np.argsort(-size[live], kind="stable")]
    groups: dict[tuple[str, int, int], list[int]] = {}
    for index, row in enumerate(live[:MAX_GROUPED].tolist()):
        name = without_numbers(card_ledger.name(row) or "")
        key = name, int(card_ledger.category[row]), int(size[row])
        groups.setdefault(key, []).append(index)
    ranked = sorted(groups, key=lambda key: -key[2] * len(groups[key]))
    added = [key for key in ranked[:LARGEST_GROUPS] if len(groups[key]) <= MAX_IN_GROUP]
    chosen = [index for key in added for index in groups[key]]
    return live[np.union1d(np.arange(min(LARGEST, len(live))), np.array(chosen, np.int64))]


def _name(seen: str | None, held: HeldStorage | None) -> str | None:
    """Choose a holding's name: the recorded one, or that of its holder.

    A holder's name replaces a missing name and the name of a graph's tensor. A traceback does not
    replace the latter: the module has more information.
    """
    if held is None or (seen is not None and not is_graph_name(seen)):
        return seen
    if seen is not None and held.holders[0].kind is HolderKind.TRACEBACK:
        return seen
    return f"{held.name} {held.form}".rstrip()


def _pinned(session: Session) -> Iterator[str]:
    """Describe the pinned host memory that torch holds, if at least 1 MiB."""
    pinned = session.facts.get("pinned") or {"held": 0}
    if pinned["held"] >= MIB:
        held, used = format_bytes(pinned["held"]), pinned["used"]
        in_use = "" if used is None else f", of them {format_bytes(used)} in use"
        yield (
            f"Of the host's memory torch holds {held} pinned for copies at the end{in_use}; "
            "they are in no line of the card."
        )


def _host_memory_notes(card_ledger: CardLedger) -> Iterator[str]:
    """Describe the part of a card's memory that is host memory."""
    info = card_ledger.trace.info
    if info.shared:
        yield (
            "The card has no memory of its own and shares the host's: total and free bytes are the "
            "machine's, and beside this process stands what all programs of the machine use."
        )
    if info.spilled_bytes:
        spilled, own = format_bytes(info.spilled_bytes), format_bytes(info.own_bytes)
        whose = "Windows' driver (WDDM)" if info.wddm else "the driver"
        yield (
            f"At least {spilled} of what torch held lay in the host's memory at one time. The card "
            f"of {own} had no room for it, and {whose} does not run out of memory then. The card "
            "reaches it over the bus, many times slower. The ledger's total is what both hold."
        )


def _notes(
    session: Session, card_ledger: CardLedger, at_peak: Ledger, at_end: Ledger
) -> tuple[str, ...]:
    notes = [*session.notes, *card_ledger.notes, *other_cards(card_ledger)]
    shown_only = hidden_phases_note(session)
    notes += [] if shown_only is None else [shown_only]
    shared = external_storages_note(card_ledger, at_end.owners)
    notes += [] if shared is None else [shared]
    went_on = passed_over_note(card_ledger)
    notes += [] if went_on is None else [went_on]
    notes += [
        *_pinned(session),
        *_host_memory_notes(card_ledger),
        *private_pools(session, card_ledger.trace),
    ]
    unknown = at_peak[Category.UNKNOWN]
    if card_ledger.phases.spans and unknown > UNKNOWN_SHARE * at_peak.active:
        share = 100 * unknown / at_peak.active
        notes.append(
            f"{share:.1f}% of the active bytes at the peak are unknown: no module, optimizer or "
            "variable that nbmem met held them. A variable that still holds them when the cell "
            "ends gives them a name; `--stacks` shows the lines that made them."
        )
    if len(card_ledger.trace.samples) and not card_ledger.process_known:
        why = (
            "Windows manages its memory: WDDM"
            if card_ledger.trace.info.wddm
            else "common in containers"
        )
        notes.append(
            f"The driver does not say what this process holds ({why}), so the row "
            "'context and libraries' holds all that the card has in use beyond the reserved bytes."
        )
    return tuple(dict.fromkeys(notes))
