"""Readings of the allocator's counters at known moments: each fixes a place in the history.

The allocator counts what it writes into its history, so a reading names a place in it exactly;
clocks could not (the history's is in microseconds, and another thread may be in between).

The sum of six counters is the index of the next entry. Where the user has reset the accumulated
counters the clock serves instead, and a note says so.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from nbmem.capture.torch_cuda import Counters, device_count, read_counters
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.session.session import Marks

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.core.session.events import Events, Ints

_NAMES = Counters._fields
_ACTIONS, _RESERVED = _NAMES.index("actions"), _NAMES.index("reserved")
_WIDTH = 1 + len(_NAMES)
"""Numbers of a reading: its mark and its counters. They take 64 bytes, objects took 460."""
MAX_MARKS = 4_000_000
"""Readings of one recording, 256 MiB for each card: half a million steps of a training loop. Later
ones are left out, but for the last (a note says so)."""


class MarkLog:
    """Takes readings of every card that torch uses.

    Args:
        device: The one card to read; None for all.

    Attributes:
        taken: Told each mark's index at once; for a roll, which has counters of its own.
    """

    def __init__(self, device: int | None) -> None:
        self._device = device
        self.taken: Callable[[int], object] = int
        self.t_ns: array[int] = array("q")
        self._read: dict[int, array[int]] = {}  # by card, _WIDTH numbers for each reading
        self._lock = threading.RLock()  # turns are told, and blocks begin, in any thread

    @property
    def full(self) -> bool:
        """Whether nothing but the last readings has room any more."""
        return len(self.t_ns) >= MAX_MARKS

    def take(self) -> int:
        """Read the counters; returns the mark's index. Before CUDA there is only the time."""
        count = device_count()
        watched = range(count) if self._device is None else (self._device,)
        with self._lock:  # around the readings, too: a later mark must not hold an earlier one
            mark = len(self.t_ns)
            for index in watched:
                counters = read_counters(index) if index < count else None
                if counters is not None:
                    self._read.setdefault(index, array("q")).extend((mark, *counters))
            self.t_ns.append(CLOCK.time_ns())
            self.taken(mark)
            return mark

    def _table(self, device: int) -> Ints:
        """Every reading of a card: its mark and its counters, a row each."""
        with self._lock:
            return np.array(self._read.get(device, ()), np.int64).reshape(-1, _WIDTH)

    def _at(self, device: int, mark: int) -> Counters | None:
        """The reading of a card at a mark; None if there is none."""
        with self._lock:
            read = self._read.get(device)
            if not read:
                return None
            rows = len(read) // _WIDTH
            row = mark - read[0]  # unless the card was away in between
            if not (0 <= row < rows and read[row * _WIDTH] == mark):
                row = bisect_left(range(rows), mark, key=lambda i: read[i * _WIDTH])
                if row == rows or read[row * _WIDTH] != mark:
                    return None
            values = read[row * _WIDTH + 1 : (row + 1) * _WIDTH]
        return Counters(*values)

    def devices(self) -> tuple[int, ...]:
        """Cards from which torch held memory or took some while the log was kept."""
        used = []
        for index in sorted(self._read):
            table = self._table(index)
            held, actions = table[:, 1 + _RESERVED], table[:, 1 + _ACTIONS]
            if held.any() or (actions != self.before_first(index)).any():
                used.append(index)
        return tuple(used)

    def now(self, device: int) -> Counters | None:
        """The last reading of a card; None if there is none."""
        return self._at(device, len(self.t_ns) - 1) if self.t_ns else None

    def requested_between(self, first: int, last: int) -> dict[int, int]:
        """By how much the requested bytes of each card grew between two marks."""
        return {card: requested for card, _, requested in self.growth(first, last)}

    def growth(self, first: int, last: int) -> tuple[tuple[int, int, int], ...]:
        """Each card's ordinal, entries of its history and requested bytes between two marks."""
        return tuple(
            (i, after.actions - before.actions, after.requested - before.requested)
            for i in tuple(self._read)
            if (before := self._at(i, first)) is not None
            and (after := self._at(i, last)) is not None
        )

    def before_first(self, device: int) -> int:
        """The history's length at the first mark; 0 where CUDA came up after it."""
        reading = self._at(device, 0)
        return reading.actions if reading is not None else 0

    def held_first(self, device: int) -> bool:
        """Whether torch held memory of a card at the first mark."""
        reading = self._at(device, 0)
        return reading is not None and reading.reserved > 0

    def were_reset(self, device: int) -> bool:
        """Whether the user's reset_accumulated_memory_stats() took the places away."""
        return bool((np.diff(self._table(device)[:, 1 + _ACTIONS]) < 0).any())

    def place(self, device: int, events: Events, entries_before: int | None) -> Marks:
        """Find each mark in a card's events.

        Args:
            device: CUDA ordinal.
            events: The card's events.
            entries_before: The history's length just before event 0; None to go by the clock.
        """
        table = np.zeros((len(self.t_ns), _WIDTH - 1), np.int64)
        read = self._table(device)
        table[read[:, 0]] = read[:, 1:]
        column = dict(zip(_NAMES, table.T, strict=True))
        t_ns = np.array(self.t_ns, np.int64)
        if entries_before is None:
            position = np.searchsorted(events.t_ns, t_ns).astype(np.int64)
        else:
            position = np.clip(column["actions"] - entries_before, 0, len(events))
        return Marks(
            t_ns=t_ns,
            position=position,
            allocated=column["allocated"],
            active=column["active"],
            requested=column["requested"],
            reserved=column["reserved"],
        )
