"""Take counter samples, each of which fixes a place in the history.

The allocator counts its history's entries, so a sample gives an exact position in the history.
Clocks cannot: the history's is in microseconds, and another thread may run in between.

The sum of six counters is the index of the next entry. If the user has reset the accumulated
counters, the clock is used instead, and a note is left.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.capture.torch_cuda import Counters, device_count, read_counters
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.session.session import CounterSamples

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.events import Events

_NAMES = Counters._fields
_ACTIONS, _RESERVED = _NAMES.index("actions"), _NAMES.index("reserved")
_WIDTH = 1 + len(_NAMES)
"""Numbers of a reading: its sample and its counters. They take 64 bytes; objects took 460."""
MAX_MARKS = 4_000_000
"""Readings of one recording, 256 MiB for each card: half a million steps of a training loop. Later
ones except the last are omitted (with a note)."""


class CounterLog:
    """Takes counter samples of every card that torch uses.

    Args:
        device: The only card to read; None for all.

    Attributes:
        taken: Called immediately with each sample's index. A storage registry has counters of its
            own.
    """

    def __init__(self, device: int | None) -> None:
        self._device = device
        self.taken: Callable[[int], object] = int
        self.t_ns: array[int] = array("q")
        self._read: dict[int, array[int]] = {}  # by card, _WIDTH numbers for each reading
        self._lock = threading.RLock()  # events are reported, and blocks begin, in any thread

    @property
    def full(self) -> bool:
        """True if there is room for nothing but the last samples."""
        return len(self.t_ns) >= MAX_MARKS

    def take(self) -> int:
        """Read the counters and return the sample's index.

        Before CUDA is initialized only the time is recorded.
        """
        watched = self.cards()
        with self._lock:  # readings included: samples must stay in order
            sample = len(self.t_ns)
            for index in watched:
                counters = read_counters(index)
                if counters is not None:
                    self._read.setdefault(index, array("q")).extend((sample, *counters))
            self.t_ns.append(CLOCK.time_ns())
            self.taken(sample)
            return sample

    @property
    def entries(self) -> int:
        """Most entries of a card's history since the first sample."""
        at = 1 + _ACTIONS
        return max((read[at - _WIDTH] - read[at] for read in self._read.values()), default=0)

    def _table(self, device: int) -> Ints:
        """Return every sample of a card: a row of its index and counters."""
        with self._lock:
            return np.array(self._read.get(device, ()), np.int64).reshape(-1, _WIDTH)

    def _at(self, device: int, sample: int) -> Counters | None:
        """Return a card's counters at a sample, or None if it was not read."""
        with self._lock:
            read = self._read.get(device)
            if not read:
                return None
            rows = len(read) // _WIDTH
            row = sample - read[0]  # unless the card was not read in between
            if not (0 <= row < rows and read[row * _WIDTH] == sample):
                row = bisect_left(range(rows), sample, key=lambda i: read[i * _WIDTH])
                if row == rows or read[row * _WIDTH] != sample:
                    return None
            values = read[row * _WIDTH + 1 : (row + 1) * _WIDTH]
        return Counters(*values)

    def devices(self) -> tuple[int, ...]:
        """List the cards from which torch held or took memory.

        The time from the first sample counts.
        """
        used = []
        for index in sorted(self._read):
            table = self._table(index)
            held, actions = table[:, 1 + _RESERVED], table[:, 1 + _ACTIONS]
            if held.any() or (actions != self.before_first(index)).any():
                used.append(index)
        return tuple(used)

    def cards(self) -> Sequence[int]:
        """Return the CUDA ordinals of the cards to read now."""
        count = device_count()
        if self._device is None:
            return range(count)
        return (self._device,) if self._device < count else ()

    def now(self, device: int) -> Counters | None:
        """Return the last sample of a card, or None if there is none."""
        return self._at(device, len(self.t_ns) - 1) if self.t_ns else None

    def requested_between(self, first: int, last: int) -> dict[int, int]:
        """Return by how much each card's requested bytes grew.

        The growth is that between two samples; cards are CUDA ordinals.
        """
        return {card: requested for card, _, requested in self.growth(first, last)}

    def growth(self, first: int, last: int) -> tuple[tuple[int, int, int], ...]:
        """Return the growth of history and requested bytes per card.

        Each row has a card's ordinal, the entries of its history between two samples, and the
        growth of its requested bytes between them.
        """
        return tuple(
            (i, after.actions - before.actions, after.requested - before.requested)
            for i in tuple(self._read)
            if (before := self._at(i, first)) is not None
            and (after := self._at(i, last)) is not None
        )

    def before_first(self, device: int) -> int:
        """Return the history's length at the first sample.

        Returns 0 if CUDA was initialized after it.
        """
        reading = self._at(device, 0)
        return reading.actions if reading is not None else 0

    def held_first(self, device: int) -> bool:
        """Return True if torch held memory of a card at the first sample."""
        reading = self._at(device, 0)
        return reading is not None and reading.reserved > 0

    def were_reset(self, device: int) -> bool:
        """Return True if the accumulated counters were reset.

        The user's reset_accumulated_memory_stats() makes positions in the history unknown.
        """
        return bool((np.diff(self._table(device)[:, 1 + _ACTIONS]) < 0).any())

    def place(self, device: int, events: Events, entries_before: int | None) -> CounterSamples:
        """Find the position of each sample in a card's events.

        Args:
            device: CUDA ordinal.
            events: The card's events.
            entries_before: The history's length just before event 0; None to use the clock.
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
        return CounterSamples(
            t_ns=t_ns,
            position=position,
            allocated=column["allocated"],
            active=column["active"],
            requested=column["requested"],
            reserved=column["reserved"],
        )
