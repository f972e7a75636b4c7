"""Track the forwards whose graphs a backward has used.

An evaluation with gradients on is a forward like any other until the next backward's graph shows
that it contains none of its nodes. A graph is read once for each sequence of similar forwards
(their modules, the number of nodes of each). The result applies to all steps with that sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nbmem.capture.graphs.saved_tensors import MAX_NODES
from nbmem.capture.tensors.autograd_graphs import sequence_numbers_of
from nbmem.capture.tensors.sequence_numbers import next_number
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import reraise_if_from_signal

MAX_ROWS = 256
"""Sequences of forwards whose results are remembered; in others all forwards count as used."""
MAX_WAITING = 4_096
"""Forwards that wait for a backward (a cell called for each word); beyond this, all are dropped."""
PATIENCE = 8
"""Backwards that a forward waits for its own: a GAN's image waits for its critic's steps."""


@dataclass(slots=True)
class _PendingForward:
    """A forward that no backward has used yet.

    It contains its counter sample, its module, the sequence numbers of its nodes, and the number of
    backwards that did not use it.
    """

    sample: int
    root: int
    first: int
    end: int = -1
    waited: int = 0


class UsedForwards:
    """Follows one thread's forwards until a backward uses them.

    Attributes:
        never: Counter samples at which forwards began that no backward used.
    """

    def __init__(self) -> None:
        self.never: set[int] = set()
        self._waiting: list[_PendingForward] = []
        self._rows: dict[tuple[tuple[int, int], ...], frozenset[int]] = {}
        self._most = 0  # forwards that one backward has used
        self._longest = 0  # backwards that a forward waited for its own

    def begins(self, sample: int, root: int) -> None:
        """Register a forward that begins, and complete the one before it."""
        number = next_number(loaded_torch())
        if number is None:
            return
        self._complete(number)
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
        self._waiting.append(_PendingForward(sample, root, number))

    def backward(self, outputs: Iterable[Any]) -> None:
        """Register a backward, given the tensors that it begins with."""
        number = next_number(loaded_torch())
        if number is None or not self._waiting:
            return
        self._complete(number)
        row = tuple((one.root, one.end - one.first) for one in self._waiting)
        indices = self._rows.get(row)
        if indices is None:
            indices = self._read(outputs)
            if len(self._rows) < MAX_ROWS:
                self._rows[row] = indices
        self._most = max(self._most, len(indices))
        self._longest = max([self._longest, *(self._waiting[i].waited for i in indices)])
        left = [
            one for i, one in enumerate(self._waiting) if i not in indices and one.end > one.first
        ]
        for one in left:
            one.waited += 1
        self.never.update(one.sample for one in left if one.waited >= PATIENCE)
        self._waiting = [one for one in left if one.waited < PATIENCE]

    def waiting(self, *, failed: bool) -> set[int]:
        """Return the counter samples of forwards that no backward will use.

        Forwards that created no graph nodes are omitted. After an error the latest forwards are
        also omitted, since their backward may have been about to come. Their number is the most
        that ever waited at once for a backward that came. If no backward has used any forward by
        then, none is returned.
        """
        number = next_number(loaded_torch())
        if number is not None:
            self._complete(number)
        waiting = [one for one in self._waiting if one.end > one.first]
        if not failed:
            return {one.sample for one in waiting}
        if self._most == 0:
            return set()
        may_come = self._most * (1 + self._longest)
        newest = enumerate(reversed(waiting))
        return {one.sample for i, one in newest if i >= may_come or one.waited > self._longest}

    def _complete(self, number: int) -> None:
        if self._waiting and self._waiting[-1].end < 0:
            self._waiting[-1].end = number

    def _read(self, outputs: Iterable[Any]) -> frozenset[int]:
        """Return the indices of the forwards whose nodes lie in a graph.

        All are returned if that cannot be determined.
        """
        every = frozenset(range(len(self._waiting)))
        if len(every) < 2 or len(self._rows) >= MAX_ROWS:
            return every
        try:
            numbers = sequence_numbers_of(loaded_torch(), outputs, MAX_NODES)
        except Exception as err:  # noqa: BLE001 - an unknown kind of graph
            reraise_if_from_signal(err)
            return every
        if numbers is None:
            return every
        begins = [one.first for one in self._waiting]
        places = ((bisect_right(begins, number) - 1, number) for number in numbers)
        return frozenset(i for i, number in places if i >= 0 and number < self._waiting[i].end)
