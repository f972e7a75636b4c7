"""The ledger of one recorded card at any position, and the peaks of spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.undo_events import undo_with_notes
from nbmem.allocator.recordings.used_private_pools import reconstruct_with_pools
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.errors import LedgerImbalanceError
from nbmem.core.session.categories import LIVE, OUTSIDE, Category
from nbmem.core.session.holders import HeldStorage, held_storages
from nbmem.core.session.host_memory import MachineParts
from nbmem.core.session.tensor_parts import (
    REFERENCE,
    CategoryPart,
    communicator_parts,
    parts_by_name,
)
from nbmem.report.ledger.allocation_facts import NO_NAME
from nbmem.report.ledger.allocation_sites import AllocationSites
from nbmem.report.ledger.attribution import attribute
from nbmem.report.ledger.balance import Ledger
from nbmem.report.ledger.failed_requests import failed_requests_of
from nbmem.report.ledger.gathered_facts import facts_of
from nbmem.report.ledger.outside_torch import NonTorchUsage, parts_at
from nbmem.report.ledger.phase_map import PhaseMap
from nbmem.report.ledger.reference_models import reference_parts

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations, MemoryCurves
    from nbmem.core.arrays import Codes, Ints, Mask
    from nbmem.core.session.session import DeviceTrace, Session
    from nbmem.core.session.spans import Span


WORKSPACE = "cuBLAS workspace"
_WORKSPACE = int(Category.WORKSPACE)
"""The category as a number. Before Python 3.12 an enum's member takes three calls to look up."""


class CardLedger:
    """Every allocation of one card with its category, and the sums.

    A *position* i is the moment before event i; position `events` is the end. Curves are in bytes,
    one value for each position, shape (events + 1,).

    Args:
        session: What was recorded.
        device: Index of the card in the session's devices (not the CUDA ordinal).

    Attributes:
        session: What was recorded.
        device: The card's index among the session's devices.
        trace: What was recorded of the card.
        events: How many events it has.
        phases: Maps events to phases.
        refused: The requests that failed.
        notes: Uncertain points, one sentence each.
        allocations: Every allocation live in the recording, in the order of allocation: a *row*.
        freed_behind: Mask of the allocations that are freed by what follows the last event; None
            where that is unknown.
        category: Category of each row, as a number.
        born_in: Index in `phases` of the phase in which each row was allocated.
    """

    def __init__(self, session: Session, device: int = 0) -> None:
        self.session = session
        self.device = device
        self.trace: DeviceTrace = session.devices[device]
        self.notes: list[str] = []
        self.freed_behind: Mask | None = None
        self.phases = PhaseMap(session.spans, device)
        self._followed = self._follow()
        self.allocations = self._followed.allocations
        self.events = len(self.trace.events)
        self.refused = failed_requests_of(session, device)
        facts, self.names, self.texts = facts_of(
            self.allocations, session, device, self.phases, self.refused
        )
        self.born_in = facts.born_in
        self.category = attribute(facts)
        self._births = AllocationSites(
            facts, self.names, self.texts, self.category, self.trace.calls
        )
        self._sums = _Sums(self.allocations, self.category)
        self._parts = _Parts(self.allocations, self.category, self.names, session)
        self._outside = NonTorchUsage(self.trace, session.names)
        self._check_samples()

    def _follow(self) -> MemoryCurves:
        trace = self.trace
        settings = AllocatorSettings.from_torch(trace.settings, trace.release)
        start = trace.start
        if start is None:
            start, notes = undo_with_notes(trace.end, trace.events, settings)
            self.notes.extend(notes)
        followed = reconstruct_with_pools(
            start, trace.events, settings, trace.end.segments, trace.kept_pools
        )
        self.notes.extend(followed.notes)
        return followed

    @property
    def allocated(self) -> Ints:
        """Curve of the bytes in allocated blocks."""
        return self._followed.allocated

    @property
    def active(self) -> Ints:
        """Curve of the bytes in allocated and pending blocks."""
        return self._followed.active

    @property
    def requested(self) -> Ints:
        """Curve of the bytes requested for active blocks."""
        return self._followed.requested

    @property
    def reserved(self) -> Ints:
        """Curve of the bytes held from the driver."""
        return self._followed.reserved

    @property
    def releasable(self) -> Ints:
        """Curve of the bytes that torch.cuda.empty_cache() would release.

        These are whole free segments and free pages. Private pools in use retain theirs, and used
        segments retain their free pieces.
        """
        return self._followed.releasable

    def bounds(self, span: Span) -> tuple[int, int]:
        """Return the first and last position of a span on this card.

        Both are included.
        """
        return span.first[self.device], span.last[self.device]

    @property
    def process_known(self) -> bool:
        """True if the driver reports what this process holds."""
        return self._outside.process_known

    def held(self, positions: Ints) -> Ints:
        """Return the bytes by category at each position.

        The table's shape is (len(positions), len(Category)).
        """
        table = np.zeros((len(positions), len(Category)), np.int64)
        for category in LIVE:
            table[:, category] = self._sums.at(category, positions)
        pending = self._sums.pending(positions)
        table[:, Category.PENDING] = pending
        table[:, Category.ROUNDING] = self.active[positions] - pending - table[:, LIVE].sum(axis=1)
        releasable = self.releasable[positions]
        table[:, Category.CACHED_RELEASABLE] = releasable
        table[:, Category.CACHED_STUCK] = (
            self.reserved[positions] - self.active[positions] - releasable
        )
        outside = self._outside.at(self._time_spans(positions), self.reserved[positions])
        table[:, OUTSIDE] = np.stack(outside, axis=1)
        table[:, Category.FREE] = self.trace.info.total_bytes - table.sum(axis=1)
        return table

    def ledger(self, position: int) -> Ledger:
        """Return the ledger at a position, checked against the counters."""
        (ledger,) = self.ledgers([position])
        ledger.check(allocated=int(self.allocated[position]), reserved=int(self.reserved[position]))
        return ledger

    def ledgers(self, positions: Sequence[int]) -> list[Ledger]:
        """Return the ledger at each position, unchecked."""
        at = np.array(positions, np.int64)
        when, held = self._time_spans(at), self.held(at)
        owners = self._outside.shares(when, self.reserved[at])
        machine = parts_at(self.trace.machine, when, held)
        parts = [None] * len(at) if machine is None else map(MachineParts.of, machine.tolist())
        return [
            Ledger(
                total_bytes=self.trace.info.total_bytes,
                held=tuple(row),
                process_known=self.process_known,
                owners=shares,
                machine=part,
                parts=(*by_name, *self._communicators(position, row[Category.CONTEXT])),
            )
            for position, row, shares, part, by_name in zip(
                positions, held.tolist(), owners, parts, self._parts.at(at), strict=True
            )
        ]

    def _communicators(self, position: int, most: int) -> Iterator[CategoryPart]:
        """Yield what NCCL holds at the end, the only moment at which it was asked."""
        if position == self.events and self.process_known:
            for name, size in communicator_parts(self.session.facts, self.device, most):
                yield CategoryPart(Category.CONTEXT, name, size)

    def parts(self, positions: Ints) -> Ints | None:
        """Return the parts of the host's memory at each position.

        The table's shape is (n, len(PARTS)). A card has no such parts: the result is None.
        """
        return parts_at(self.trace.machine, self._time_spans(positions), self.held(positions))

    def peak(self, first: int, last: int) -> int:
        """Return the position between two at which most is allocated.

        Both ends are included; of several such positions the earliest is returned.
        """
        return first + int(np.argmax(self.allocated[first : last + 1]))

    def peak_process(self, first: int = 0, last: int | None = None) -> int | None:
        """Return the highest process figure between two positions.

        It is the larger of the readings in that range and the ledger's figure at any event.

        Args:
            first: Position; 0 includes readings before the first event.
            last: Position; None includes readings after the last event.

        Returns:
            Bytes; None if the driver does not report them.
        """
        if not self.process_known:
            return None
        positions = np.arange(first, (self.events if last is None else last) + 1)
        begin = int(self.times(positions[:1])[0]) if first else 0
        end = int(self.times(positions[-1:])[0]) if last is not None else np.iinfo(np.int64).max
        return max(self._outside.highest_read(begin, end), int(self._processes(positions).max()))

    def largest_process(self) -> int | None:
        """Return the first position with the highest process figure.

        Returns None if a reading between events was higher, or if the driver hides the figure.
        """
        if not self.process_known:
            return None
        held = self._processes(np.arange(self.events + 1))
        position = int(held.argmax())
        read = self._outside.highest_read(0, np.iinfo(np.int64).max)
        return position if held[position] >= read else None

    def _processes(self, positions: Ints) -> Ints:
        """Return the process figure at each position."""
        reserved = self.reserved[positions]
        used, cached, context, *_ = self._outside.at(self.times(positions), reserved)
        held: Ints = reserved + used + cached + context
        return held

    def _time_spans(self, positions: Ints) -> Ints:
        """Return the time of each position; the last one is open-ended.

        Readings after the last position belong to it.
        """
        return np.where(positions < self.events, self.times(positions), np.iinfo(np.int64).max)

    def times(self, positions: Ints) -> Ints:
        """Return the time at which each position begins.

        Times are nanoseconds since the epoch.
        """
        times = self.trace.events.t_ns
        if not len(times):
            return np.full(len(positions), self.session.created_ns, np.int64)
        return times[np.clip(positions - 1, 0, len(times) - 1)]

    def name(self, row: int) -> str | None:
        """Return an allocation's name, or the place where it was made.

        Returns None if neither is known.
        """
        if self.category[row] == _WORKSPACE:  # even if a gradient is as large
            return WORKSPACE
        index = int(self.names[row])
        return self.texts[index] if index != NO_NAME else self._births.name(row)

    def allocated_without(self, rows: Ints, since: Ints) -> Ints:
        """Return the curve of the allocated bytes without some allocations.

        Args:
            rows: The allocations.
            since: For each of them, the event from which it is free; -1 if it was never made.
        """
        a = self.allocations
        change = np.zeros(self.events + 2, np.int64)
        np.add.at(change, since + 1, a.block[rows])
        np.subtract.at(change, a.freed[rows] + 1, a.block[rows])
        without: Ints = self.allocated - np.cumsum(change)[: self.events + 1]
        return without

    @cached_property
    def storages(self) -> tuple[HeldStorage, ...]:
        """The storages that lived at the end, with their holders, largest first.

        Empty if holders were not searched.
        """
        return held_storages(self.session, self.trace) or ()

    def live(self, position: int) -> Ints:
        """Return the rows of the allocations that live at a position."""
        a = self.allocations
        return np.flatnonzero((a.allocated_at < position) & (a.freed >= position))

    def _check_samples(self) -> None:
        """Note where replayed events and the allocator's counters disagree."""
        samples, f = self.trace.counter_samples, self._followed
        if self.trace.dropped or not len(samples):
            return
        wrong = np.flatnonzero(
            (f.allocated[samples.position] != samples.allocated)
            | (f.reserved[samples.position] != samples.reserved)
        )
        if len(wrong):
            where = int(wrong[0])
            imbalance = LedgerImbalanceError(
                f"At reading {where} the allocator had {samples.allocated[where]} B allocated and "
                f"{samples.reserved[where]} B reserved; its history gives "
                f"{f.allocated[samples.position[where]]} B and "
                f"{f.reserved[samples.position[where]]} B. {len(wrong)} of {len(samples)} readings "
                "differ; phases around them may be misplaced."
            )
            self.notes.append(str(imbalance))


class _Sums:
    """Requested bytes by category at any position, in O(log n) per position."""

    def __init__(self, a: Allocations, category: Codes) -> None:
        self._parts = {
            c: _Curve(a.allocated_at[rows], a.freed[rows], a.requested[rows])
            for c in LIVE
            if len(rows := np.flatnonzero(category == c))
        }
        waits = np.flatnonzero(a.completed_at > a.freed)
        self._pending = _Curve(a.freed[waits], a.completed_at[waits], a.block[waits])

    def at(self, category: Category, positions: Ints) -> Ints | int:
        curve = self._parts.get(category)
        return 0 if curve is None else curve.at(positions)

    def pending(self, positions: Ints) -> Ints:
        return self._pending.at(positions)


class _Parts:
    """Requested bytes by part of a category at any position."""

    def __init__(self, a: Allocations, category: Codes, names: Ints, session: Session) -> None:
        known = reference_parts(session.facts, session.names) | parts_by_name(session.facts)
        texts = sorted(set(known.values()))
        by_name = np.full(int(names.max(initial=0)) + 1, NO_NAME, np.int64)
        for index, part in known.items():
            if 0 <= index < len(by_name):
                by_name[index] = texts.index(part)
        numbers = np.where(names == NO_NAME, NO_NAME, by_name[names])
        self._curves = {
            (what, part): _Curve(a.allocated_at[rows], a.freed[rows], a.requested[rows])
            for number, part in enumerate(texts)
            for what in (LIVE if part != REFERENCE else (Category.WEIGHTS,))
            if len(rows := np.flatnonzero((numbers == number) & (category == what)))
        }

    def at(self, positions: Ints) -> list[tuple[CategoryPart, ...]]:
        """Return the parts at each position; a category's by name."""
        sizes = {key: curve.at(positions).tolist() for key, curve in self._curves.items()}
        return [
            tuple(CategoryPart(*key, size[row]) for key, size in sizes.items() if size[row])
            for row in range(len(positions))
        ]


class _Curve:
    """A sum of sizes over the positions in (begin, end]."""

    def __init__(self, begin: Ints, end: Ints, size: Ints) -> None:
        self._begin, self._up = _cumulative(begin, size)
        self._end, self._down = _cumulative(end, size)

    def at(self, positions: Ints) -> Ints:
        up = self._up[np.searchsorted(self._begin, positions)]
        return up - self._down[np.searchsorted(self._end, positions)]


def _cumulative(at: Ints, size: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(at, kind="stable")
    return at[order], np.concatenate([np.zeros(1, np.int64), np.cumsum(size[order])])
