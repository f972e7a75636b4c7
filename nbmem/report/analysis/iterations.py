"""Find the iterations in which some allocations were made.

A loop need not have numbered steps. Its iterations are told apart by the calls of modules, or else
by backward passes or optimizer steps. In a loop without any of these, the number of allocations
made so far is the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import BEYOND, NOT_KNOWN
from nbmem.core.session.tensor_names import STEP

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

MIN_ITERATIONS = 4
"""Iterations that make a loop: three differences, so that two jumps are no growth."""
MANY = 8
"""Iterations from which a list that is emptied and filled again is worth a tip."""
LONGEST = 8
"""Most moments of one iteration at which something is added."""
REGULAR = 0.75
"""Part of the additions that must repeat for them to be a loop's."""
AT_ONCE = 0.5
"""Part of the loop in which nothing may be added: a jump is no growth."""
ENDED = 0.25
"""Part of the loop's length behind the last addition from which the growth has ended."""
PAUSE = 2.5
"""Iterations without an addition that never count as an end."""
REPLACED = 0.5
"""Part of the bytes added: if as many of earlier items were freed meanwhile, nothing grows."""
LARGER = 1.5
"""Times the bytes kept of an iteration that its largest other tensor must have to be work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """The regular additions to a group of allocations.

    Attributes:
        slope: Block bytes that an iteration adds (the median).
        iterations: How many iterations added something.
        works: Whether an iteration allocates and frees something larger than what it keeps. A
            loop that does not may load data or build a model.
        joined: Whether it is one tensor that each iteration makes anew, larger.
        begins: The position of each iteration's first addition, ascending.
    """

    slope: int
    iterations: int
    works: bool
    joined: bool = False
    begins: tuple[int, ...] = ()

    def and_with(self, other: Rise) -> Rise:
        """Return the additions of two groups to one variable."""
        return replace(
            self,
            slope=self.slope + other.slope,
            iterations=max(self.iterations, other.iterations),
            works=self.works or other.works,
            joined=self.joined and other.joined,
        )


class Iterations:
    """The clocks of a recording up to a position.

    Args:
        card_ledger: The card's ledger.
        until: The position at which growth is measured.
    """

    def __init__(self, card_ledger: CardLedger, until: int) -> None:
        self._card_ledger, self._until = card_ledger, until
        self._a = card_ledger.allocations
        self._allocated = np.sort(self._a.allocated_at[self._a.addr < BEYOND])
        calls, names = card_ledger.trace.calls, card_ledger.session.names
        if calls is None:
            self._call_ends = self._called = np.zeros(0, np.int64)
            begins = self._phase_begins("forward", "inference")
        else:
            steps = [i for i in np.unique(calls.name).tolist() if names[i].endswith(STEP)]
            modules = calls[~np.isin(calls.name, steps)]
            self._call_ends, self._called = modules.last, modules.name
            begins = np.where(modules.first == NOT_KNOWN, modules.last, modules.first)
        others = self._phase_begins("backward"), self._phase_begins("optimizer")
        self._clocks = [np.unique(ticks) for ticks in (begins, *others)]

    def _phase_begins(self, *names: str) -> Ints:
        spans = (span for _, span in self._card_ledger.phases.spans if span.name in names)
        return np.array([self._card_ledger.bounds(span)[0] for span in spans], np.int64)

    def rise_of(self, rows: Ints, earlier: Ints) -> Rise | None:
        """Return how some allocations were added, or None.

        None unless a loop added them that has not ended before the position.

        Args:
            rows: The allocations, ascending. Those made before the recording do not count.
            earlier: Possible items of the same variable that were freed before the position.
        """
        a = self._a
        rows = rows[a.allocated_at[rows] >= 0]
        if len(rows) < MIN_ITERATIONS:
            return None
        clocks = self._clocks_of(a.allocated_at[rows])
        if not (clocks or self._is_plain_loop(rows)) or not self._repeats(rows):
            return None
        clocks = clocks or [self._allocated]
        if not any(self._goes_on(clock, rows) for clock in clocks):
            return None
        ticks = clocks[0]
        moments, first, index = np.unique(
            _at(ticks, a.allocated_at[rows]), return_index=True, return_inverse=True
        )
        count = _additions(moments, np.bincount(index))
        items = earlier[
            _at(ticks, a.freed[earlier]) - _at(ticks, a.allocated_at[earlier])
            >= 2 * _distance(moments, count)
        ]  # what lives for a shorter time is a variable of the loop
        if self._is_replaced(rows, items, refills=len(moments) < MANY * count):
            return None
        added = np.bincount(index, a.block[rows]).astype(np.int64)
        sums = np.add.reduceat(added, np.arange(0, len(added) // count * count, count))
        slope = int(np.sort(sums)[len(sums) // 2])
        return Rise(
            slope=slope,
            iterations=int((2 * sums >= slope).sum()),  # the first may begin before the clock
            works=ticks is not self._allocated or self._works(rows),
            begins=tuple(a.allocated_at[rows[first[::count]]].tolist()),
        )

    def _clocks_of(self, positions: Ints) -> list[Ints]:
        """Return the clocks that tell additions apart, the finest first."""
        return [
            one for one in self._clocks if len(np.unique(_at(one, positions))) >= MIN_ITERATIONS
        ]

    def _goes_on(self, ticks: Ints, rows: Ints) -> bool:
        """Return whether additions are spread over the loop, and reach its end.

        An evaluation behind a training is no longer the loop: the optimizer's clock stands still.
        """
        moments, index = np.unique(_at(ticks, self._a.allocated_at[rows]), return_inverse=True)
        count = _additions(moments, np.bincount(index))
        if len(moments) < MIN_ITERATIONS * count:
            return False
        span, distance = int(moments[-1] - moments[0]), _distance(moments, count)
        if int(np.diff(moments).max()) > max(AT_ONCE * span, distance):
            return False
        since = int(_at(ticks, np.array([self._until]))[0] - moments[-1])
        return since <= max(PAUSE * distance, ENDED * span)

    def _is_plain_loop(self, rows: Ints) -> bool:
        """Return whether neither module nor optimizer runs between allocations.

        Nor behind them: data that is loaded first is used there.
        """
        first, phases = int(self._a.allocated_at[rows[0]]), self._card_ledger.phases
        made_in = self._card_ledger.born_in[rows]
        if np.any(phases.named(made_in, "forward", "backward", "optimizer")):
            return False
        clocks = *self._clocks, self._call_ends
        return not any(np.any((c > first) & (c <= self._until)) for c in clocks)

    def _repeats(self, rows: Ints) -> bool:
        """Return whether some module is called again and again meanwhile.

        A loop over layers calls each of them once, and there is no backward in between.
        """
        first, last = self._a.allocated_at[rows[[0, -1]]].tolist()
        meanwhile = (self._call_ends > first) & (self._call_ends <= last)
        called = self._called[meanwhile]
        backwards = (self._clocks[1] > first) & (self._clocks[1] <= last)
        again = 2 * len(np.unique(called)) <= len(called)
        return again or 2 * int(backwards.sum()) >= len(called)

    def _is_replaced(self, rows: Ints, items: Ints, *, refills: bool) -> bool:
        """Return whether earlier items were freed while these were added.

        If the variable is short (`refills`), it is also one that is emptied and filled again.
        """
        a, first = self._a, -1 if refills else int(self._a.allocated_at[rows[0]])
        freed = items[(a.freed[items] > first) & (a.freed[items] < self._until)]
        return int(a.block[freed].sum()) >= REPLACED * int(a.block[rows].sum())

    def _works(self, rows: Ints) -> bool:
        """Return whether most iterations free something larger than they keep."""
        a = self._a
        order = np.flatnonzero((a.allocated_at >= 0) & (a.freed < self._until))
        other = order[~np.isin(order, rows)]
        largest = np.zeros(len(rows) + 1, np.int64)
        np.maximum.at(largest, np.searchsorted(rows, other), a.requested[other])
        return bool((largest[:-1] > LARGER * a.requested[rows]).mean() >= REGULAR)


def _at(ticks: Ints, positions: Ints) -> Ints:
    """Return how many ticks came before each position, or at it."""
    return np.searchsorted(ticks, positions, "right")


def _additions(moments: Ints, counts: Ints) -> int:
    """Return at how many moments an iteration adds something.

    The distances and the numbers of allocations repeat after as many.
    """
    for each in range(1, min(LONGEST, len(moments) // MIN_ITERATIONS) + 1):
        apart = moments[each:] - moments[:-each]
        if (
            np.mean(apart == np.median(apart)) >= REGULAR
            and np.mean(counts[each:] == counts[:-each]) >= REGULAR
        ):
            return each
    return 1


def _distance(moments: Ints, count: int) -> float:
    """Return the usual distance between iterations."""
    return float(np.median(moments[count:] - moments[:-count]))
