"""Infer what ran between two hook events from the allocations there.

The allocations there and their lifetimes show what ran. An update allocates most of the gradients'
sizes again and leaves nothing else. What takes memory before the first forward is `load`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import TAKES, Action, Events

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAllocations:
    """Positions at which observed tensors were allocated, each ascending.

    Attributes:
        inputs: Tensors that a module was given.
        weights: Weights and buffers of modules.
    """

    inputs: Ints = field(default_factory=_none)
    weights: Ints = field(default_factory=_none)


class UnhookedIntervals:
    """Interprets one card's events between two positions."""

    def __init__(self, events: Events, births: ObservedAllocations) -> None:
        self._events = events
        self._inputs: list[int] = births.inputs.tolist()  # bisect is faster than numpy for one
        self._made: list[int] = births.weights.tolist()
        self._freed = _deaths(events)
        self._allocs = np.flatnonzero(events.action == Action.ALLOC)
        self._weights = set(events.size[births.weights].tolist())
        self._weights_freed = np.sort(self._freed[births.weights])
        self._gradients: set[int] = set()

    def learn(self, first: int, last: int) -> None:
        """Learn the sizes of gradients from what a backward left allocated.

        Only sizes that are also sizes of weights count; if there are none, all count.
        """
        rows = self._rows(first, last)
        left = set(self._events.size[rows[self._freed[rows] >= last]].tolist())
        self._gradients |= (left & self._weights) or left

    def first_input(self, start: int, end: int) -> int | None:
        """Return where the first tensor is allocated that a module was given.

        Returns None if there is none between the positions.
        """
        index = bisect_left(self._inputs, start)
        if index == len(self._inputs) or self._inputs[index] >= end:
            return None
        return max(start, self._with_its_memory(self._inputs[index]))

    def inputs(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the range in which module inputs are allocated, or None.

        It reaches from the first such allocation to after the last one.
        """
        first = self.first_input(start, end)
        if first is None:
            return None
        return first, self._inputs[bisect_left(self._inputs, end) - 1] + 1

    def any_allocated(self, start: int, end: int) -> bool:
        """Return True if anything was allocated between two positions."""
        return len(self._rows(start, end)) > 0

    def begins_like(self, start: int, end: int, first: int, last: int) -> int | None:
        """Find where the end of a gap repeats another stretch's allocations.

        Args:
            start: Where the gap begins.
            end: Where it ends.
            first: Where the other stretch begins.
            last: Where it ends.

        Returns:
            The position; None if the gap does not contain all of the other's allocations, in order.
        """
        wanted = self._events.size[self._rows(first, last)].tolist()
        found = None
        for row in self._rows(start, end)[::-1].tolist():
            if wanted and self._events.size[row] == wanted[-1]:  # others are made once
                found = row
                wanted.pop()
        return None if wanted or found is None else self._with_its_memory(found)

    def weights(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the range in which module weights are allocated, or None.

        It reaches from the first such allocation to after the last one. Buffers count as weights.
        """
        first, last = bisect_left(self._made, start), bisect_left(self._made, end)
        if first == last:
            return None
        return self._with_its_memory(self._made[first]), self._made[last - 1] + 1

    def weights_died(self, start: int, end: int) -> bool:
        """Return True if weights were freed: those of a model no longer held."""
        first, last = np.searchsorted(self._weights_freed, (start, end))
        return bool(last > first)

    def until_input(self, start: int, end: int) -> int:
        """Return where the next batch is allocated, or else the end."""
        birth = self.first_input(start, end)
        return end if birth is None else birth

    def update(self, start: int, end: int) -> int | None:
        """Return the end of a weight update that begins at a position, or None.

        It allocates tensors of most gradients' sizes, and tensors of other sizes do not remain. The
        next batch ends it.
        """
        end = self.until_input(start, end)
        rows = self._rows(start, end)
        if not len(rows):
            return None
        sizes = self._events.size[rows]
        like = np.isin(sizes, list(self._gradients))
        others = np.flatnonzero(~like & (self._freed[rows] >= end))
        stop = int(others[0]) if len(others) else len(rows)
        found = set(sizes[:stop][like[:stop]].tolist())
        if not found or 2 * len(found) < len(self._gradients):
            return None
        return end if stop == len(rows) else self._with_its_memory(int(rows[stop]))

    def _rows(self, start: int, end: int) -> Ints:
        first, last = np.searchsorted(self._allocs, (start, end))
        return self._allocs[first:last]

    def _with_its_memory(self, birth: int) -> int:
        return with_its_memory(self._events, birth)


def with_its_memory(events: Events, birth: int) -> int:
    """Return where an allocation begins, driver allocations included.

    These are the events that took memory from the driver for it.
    """
    while birth and events.action[birth - 1] in TAKES:
        birth -= 1
    return birth


def _deaths(events: Events) -> Ints:
    """Return for each allocation the position at which it was freed.

    The number of events is the position of allocations that were never freed.
    """
    freed = np.full(len(events), len(events), np.int64)
    rows = np.flatnonzero(np.isin(events.action, (Action.ALLOC, Action.FREE_REQUESTED)))
    order = rows[np.lexsort((rows, events.addr[rows]))]
    before, after = order[:-1], order[1:]
    pairs = (
        (events.action[before] == Action.ALLOC)
        & (events.action[after] == Action.FREE_REQUESTED)
        & (events.addr[before] == events.addr[after])
    )
    freed[before[pairs]] = after[pairs]
    return freed
