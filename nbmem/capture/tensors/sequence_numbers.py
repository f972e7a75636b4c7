"""When a graph's nodes were made: torch numbers those of a thread, one after another.

So a node tells between which two marks it was made, and with it that its tensors were there by the
second one. Known limit: a node that another thread has made is taken for one of this thread's.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from typing import Any

MOST_MARKS = 8_192
"""Marks of a thread, the latest: those between which graphs were made that are still alive. At
most half of them go at once; of older nodes it is then known that they were there by the first."""


def made_at(node: Any) -> int:
    """When a node was made: a number that grows; of a parameter's own the largest."""
    return int(node._sequence_nr())  # noqa: SLF001


def next_number(torch: Any) -> int | None:
    """The number that the next node of this thread gets; None if torch does not tell."""
    told = getattr(torch._C._autograd, "_get_sequence_nr", None)  # noqa: SLF001
    return None if told is None else int(told())


class NodeNumbers:
    """How far each thread's numbers were at its marks.

    Args:
        torch: The user's torch. One that does not tell its next number leaves everything unknown.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._mine = threading.local()

    def at_mark(self, mark: int) -> None:
        """Remember how many nodes this thread has made by now."""
        number = next_number(self._torch)
        if number is None:
            return
        marks, numbers = self._columns()
        marks.append(mark)
        numbers.append(number)
        if len(marks) >= MOST_MARKS:
            del marks[: MOST_MARKS // 2], numbers[: MOST_MARKS // 2]

    def mark_behind(self, number: int) -> int | None:
        """The first mark at which a node was there; None if it is younger than all of them."""
        marks, numbers = self._columns()
        at = bisect_right(numbers, number)  # the next number is larger than those that were given
        return marks[at] if at < len(marks) else None

    def _columns(self) -> tuple[array[int], array[int]]:
        found: tuple[array[int], array[int]] | None = getattr(self._mine, "columns", None)
        if found is None:
            found = self._mine.columns = array("q"), array("Q")
        return found
