"""Log where garbage collections begin and end in the allocator's history.

What is freed in between was reachable only from reference cycles.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from nbmem.capture.patches.compilations import skip_in_dynamo
from nbmem.capture.record.time_budget import TimeBudget
from nbmem.capture.torch_cuda import read_counters
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.garbage_collector import report_collections
from nbmem.core.session.events import Action, Events
from nbmem.core.session.session import CollectedFrees

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints

_FULL = 2
"""The generation of a collection of all objects, which takes milliseconds itself."""
_WIDTH = 4
"""Numbers of a collection on one card: its times and the history's lengths at both ends."""
MAX_COLLECTIONS = 200_000
"""Collections of a recording that freed an object, for each card; 6 MiB."""


class CollectionLog:
    """Reads the history's length at both ends of each collection.

    Readings take at most 2% of the time, except at full collections. Of a collection without
    readings nothing is known.

    Args:
        cards: Returns the CUDA ordinals of the cards to read.
        others_free: Returns whether another thread may be freeing memory meanwhile, without
            Python. Such a collection is left out.
    """

    def __init__(self, cards: Callable[[], Iterable[int]], others_free: Callable[[], bool]) -> None:
        self._cards, self._others_free = cards, others_free
        self._budget = TimeBudget()
        self._begun: tuple[dict[int, int], int] | None = None
        self._read: dict[int, array[int]] = {}
        self._end: Callable[[], None] | None = None

    def start(self, on_fault: Callable[[BaseException], object]) -> None:
        """Start to log."""
        skip_in_dynamo(CollectionLog._reported)  # a collection may begin inside a compiled function
        self._end = report_collections(self._reported, on_fault)

    def stop(self) -> None:
        """Stop to log, if it was started."""
        if self._end is not None:
            self._end()
            self._end = None

    @property
    def freed(self) -> bool:
        """True if a collection freed memory of a card."""
        return any(
            end > begin
            for rows in self._read.values()
            for begin, end in zip(rows[2::_WIDTH], rows[3::_WIDTH], strict=True)
        )

    def _reported(self, phase: str, about: Mapping[str, int]) -> None:
        if phase == "start":
            self._begun = None
            if about["generation"] >= _FULL:
                self._begun = self._lengths(), CLOCK.time_ns()
                return
            with self._budget.spend("start") as granted:
                if granted:
                    self._begun = self._lengths(), CLOCK.time_ns()
        elif self._begun is not None and about["collected"] and not self._others_free():
            ended_ns = CLOCK.time_ns()
            before, began_ns = self._begun
            for index, length in self._lengths().items():
                rows = self._read.setdefault(index, array("q"))
                if index in before and len(rows) < MAX_COLLECTIONS * _WIDTH:
                    rows.extend((began_ns, ended_ns, before[index], length))

    def _lengths(self) -> dict[int, int]:
        read = ((index, read_counters(index)) for index in self._cards())
        return {index: counters.actions for index, counters in read if counters is not None}

    def place(
        self, device: int, events: Events, entries_before: int | None, *, imitated: bool
    ) -> CollectedFrees | None:
        """Find the frees that collections requested.

        Args:
            device: CUDA ordinal.
            events: The card's events.
            entries_before: The history's length just before event 0; None if it is not known.
            imitated: Whether the allocator is nbmem's own. It defers a free that comes while it
                works, so its frees are found by their times as well, which are exact.

        Returns:
            Them; None if the history's length is not known.
        """
        if entries_before is None:
            return None
        frees = np.flatnonzero(events.action == Action.FREE_REQUESTED)
        rows = np.array(self._read.get(device, ()), np.int64).reshape(-1, _WIDTH)
        found = _range_of(frees, rows[:, 2] - entries_before, rows[:, 3] - entries_before)
        if imitated:
            t_ns = events.t_ns[frees]  # of whole microseconds
            by_time = _range_of(t_ns, rows[:, 0] // 1000 * 1000, rows[:, 1] + 1)
            found = np.maximum(found, by_time)
        inside = np.flatnonzero(found >= 0)
        numbers = np.unique(found[inside], return_inverse=True)[1]
        return CollectedFrees(event=frees[inside], collection=numbers.astype(np.int64))


def _range_of(values: Ints, first: Ints, last: Ints) -> Ints:
    """Return for each value the index of the range that it is in, or -1."""
    at: Ints = np.searchsorted(first, values, side="right") - 1
    ends = np.append(last, -1)  # the index -1 is of no range
    return np.where(values < ends[at], at, -1)
