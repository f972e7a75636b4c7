"""Readings of the allocator's counters at known moments: each fixes a place in the history.

The allocator counts what it writes into its history, so a reading names a place in it exactly;
clocks could not (the history's is in microseconds, and another thread may be in between).
"""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session import Marks
from nbmem.probes.cuda import Counters, device_count, read_counters

if TYPE_CHECKING:
    from nbmem.core.events import Events


class MarkLog:
    """Takes readings of every card that torch uses.

    Args:
        device: The one card to read; None for all.
    """

    def __init__(self, device: int | None) -> None:
        self._device = device
        self.t_ns: list[int] = []
        self._readings: list[dict[int, Counters]] = []
        self._lock = threading.RLock()  # turns are told, and blocks begin, in any thread

    def take(self) -> int:
        """Read the counters; returns the mark's index. Before CUDA there is only the time."""
        count = device_count()
        watched = range(count) if self._device is None else (self._device,)
        with self._lock:  # around the readings, too: a later mark must not hold an earlier one
            readings = {i: c for i in watched if i < count and (c := read_counters(i)) is not None}
            self.t_ns.append(time.time_ns())
            self._readings.append(readings)
            return len(self.t_ns) - 1

    def devices(self) -> tuple[int, ...]:
        """Cards from which torch held memory or took some while the log was kept."""
        used = set()
        for readings in self._readings:
            for index, counters in readings.items():
                if counters.reserved or counters.actions != self.before_first(index):
                    used.add(index)
        return tuple(sorted(used))

    def now(self, device: int) -> Counters | None:
        """The last reading of a card; None if there is none."""
        return self._readings[-1].get(device) if self._readings else None

    def requested_between(self, first: int, last: int) -> dict[int, int]:
        """By how much the requested bytes of each card grew between two marks."""
        return {card: requested for card, _, requested in self.growth(first, last)}

    def growth(self, first: int, last: int) -> tuple[tuple[int, int, int], ...]:
        """Each card's ordinal, entries of its history and requested bytes between two marks."""
        before, after = self._readings[first], self._readings[last]
        return tuple(
            (i, c.actions - before[i].actions, c.requested - before[i].requested)
            for i, c in after.items()
            if i in before
        )

    def before_first(self, device: int) -> int:
        """The history's length at the first mark; 0 where CUDA came up after it."""
        reading = self._readings[0].get(device)
        return reading.actions if reading is not None else 0

    def were_reset(self, device: int) -> bool:
        """Whether the user's reset_accumulated_memory_stats() took the places away."""
        entries = [r[device].actions for r in self._readings if device in r]
        return any(after < before for before, after in pairwise(entries))

    def place(self, device: int, events: Events, entries_before: int | None) -> Marks:
        """Find each mark in a card's events.

        Args:
            device: CUDA ordinal.
            events: The card's events.
            entries_before: The history's length just before event 0; None to go by the clock.
        """
        nothing = Counters(
            t_ns=0, actions=0, allocated=0, active=0, requested=0, reserved=0, peak_allocated=0
        )
        readings = [r.get(device, nothing) for r in self._readings]
        t_ns = np.array(self.t_ns, np.int64)
        if entries_before is None:
            position = np.searchsorted(events.t_ns, t_ns).astype(np.int64)
        else:
            entries = np.array([c.actions for c in readings], np.int64) - entries_before
            position = np.clip(entries, 0, len(events))
        return Marks(
            t_ns=t_ns,
            position=position,
            allocated=np.array([c.allocated for c in readings], np.int64),
            active=np.array([c.active for c in readings], np.int64),
            requested=np.array([c.requested for c in readings], np.int64),
            reserved=np.array([c.reserved for c in readings], np.int64),
        )
