"""Cut a recording where a function that the cell called had its variables.

They are freed when it returns: what held memory until then has no name at the recording's end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.undo_events import undo_with_notes
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.session.holders import HolderKind
from nbmem.report.ledger.card_ledger import CardLedger

if TYPE_CHECKING:
    from nbmem.core.arrays import Mask
    from nbmem.core.session.holders import HeldStorage
    from nbmem.core.session.session import BeforeReturn, DeviceTrace, Session
    from nbmem.core.session.spans import Span

LEAST = 0.01
"""Share of the peak that the variables held. With less, the recording's end says as much."""
LEAST_INSIDE = 0.1
"""Share of what was allocated then that the variables of a function held which another one called.
With less, what the other one held says as much."""


def ledger_before_return(card_ledger: CardLedger) -> CardLedger | None:
    """Return the ledger up to when a function's variables were freed.

    None where no function is known, where the peak or an error came later, or where its variables
    held little. If the function failed, its traceback holds them on.
    """
    then = card_ledger.trace.before_return
    if then is None or card_ledger.peak(0, card_ledger.events) > then.event:
        return None
    if card_ledger.session.error is not None:
        if then.freed < card_ledger.events:
            return None
    elif _released(card_ledger, then) < _least(card_ledger, then):
        return None
    before = CardLedger(_session_before(card_ledger.session), card_ledger.device)
    freed = card_ledger.allocations.freed[: len(before.allocations)]
    before.freed_behind = freed < then.freed
    return before


def _least(card_ledger: CardLedger, then: BeforeReturn) -> float:
    """Return the bytes that a function's variables must have held."""
    facts, allocated = card_ledger.session.facts.get("before_return", {}), card_ledger.allocated
    inside = LEAST_INSIDE * int(allocated[then.event]) if facts.get("callers") else 0
    return max(inside, LEAST * int(allocated.max()))


def out_of_reach(card_ledger: CardLedger) -> Mask:
    """Return a mask of the allocations that no later code can use.

    Those are a script's, and those of the variables of a function that has returned. They may be
    alive at the end or not.
    """
    if card_ledger.session.facts.get("notebook") is False:
        return np.ones(len(card_ledger.allocations), bool)
    freed = card_ledger.freed_behind
    return np.zeros(len(card_ledger.allocations), bool) if freed is None else freed


def _released(card_ledger: CardLedger, then: BeforeReturn) -> int:
    """Return the bytes that a function's variables held, garbage included.

    All that was there, if holders were not searched to the end: a look at the heap may wait until
    the kernel is idle.
    """
    before, behind = card_ledger.allocated[[then.event, then.freed]].tolist()
    if card_ledger.trace.holders is None:
        return int(before)
    dead = sum(held.size for held in card_ledger.storages if _is_garbage(held))
    dead += int(then.holders.size[then.holders.kind == HolderKind.CYCLE].sum())
    return int(before) - int(behind) + dead


def _is_garbage(held: HeldStorage) -> bool:
    """Return whether only cycles and functions that have ended hold a storage."""
    return all(holder.kind in (HolderKind.CYCLE, HolderKind.FRAME) for holder in held.holders)


def _session_before(session: Session) -> Session:
    devices = tuple(
        one if one.before_return is None else _trace_before(one, one.before_return)
        for one in session.devices
    )
    facts = {**session.facts, **session.facts.get("before_return", {})}
    facts["called_later"] = _called_later(session)
    ends = [len(device.events) for device in devices]
    return replace(
        session,
        devices=devices,
        spans=tuple(_clipped(span, ends) for span in session.spans),
        facts=facts,
    )


def _called_later(session: Session) -> frozenset[str]:
    """Return the names of the modules that are called behind the cut."""
    found: set[int] = set()
    for trace in session.devices:
        if trace.before_return is not None and trace.calls is not None:
            found.update(trace.calls.name[trace.calls.last > trace.before_return.event].tolist())
    return frozenset(session.names[index] for index in found)


def _clipped(span: Span, ends: list[int]) -> Span:
    return replace(
        span,
        first=tuple(map(min, span.first, ends)),
        last=tuple(map(min, span.last, ends)),
    )


def _trace_before(trace: DeviceTrace, then: BeforeReturn) -> DeviceTrace:
    last = then.event
    settings = AllocatorSettings.from_torch(trace.settings, trace.release)
    calls, collected, uses = trace.calls, trace.collected, trace.block_uses
    samples, labels = trace.counter_samples, trace.storage_labels
    return replace(
        trace,
        events=trace.events[:last],
        end=undo_with_notes(trace.end, trace.events[last:], settings)[0],
        counter_samples=samples[samples.position <= last],
        storage_labels=labels[labels.position <= last],
        holders=then.holders,
        calls=None if calls is None else calls[calls.last <= last],
        collected=None if collected is None else collected[collected.event < last],
        block_uses=None
        if uses is None
        else replace(uses[uses.made < last], last=np.minimum(uses.last[uses.made < last], last)),
        before_return=None,
    )
