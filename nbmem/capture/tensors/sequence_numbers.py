"""Find the counter samples between which an autograd node was created.

torch numbers the nodes of a thread consecutively. So the number shows between which two samples a
node was created. Its tensors existed at the second one.

Known limit: a node that another thread has created counts as one of this thread's.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from typing import Any

MAX_SAMPLES = 8_192
"""The latest samples of a thread that are kept. When there are as many, the older half is dropped.
Then a node from before the first kept sample counts as created before it."""


def sequence_nr_of(node: Any) -> int:
    """Return a node's autograd sequence number.

    The number grows with each node; a parameter's own node has the largest.
    """
    return int(node._sequence_nr())  # noqa: SLF001


def next_number(torch: Any) -> int | None:
    """Return the sequence number of this thread's next node, or None.

    None if torch does not expose it.
    """
    read_next = getattr(torch._C._autograd, "_get_sequence_nr", None)  # noqa: SLF001
    return None if read_next is None else int(read_next())


class SequenceNumbers:
    """Sequence numbers that each thread had reached at counter samples.

    Args:
        torch: The user's torch. If it does not expose the next number, every result is None.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._local = threading.local()

    def record_sample(self, sample: int) -> None:
        """Record this thread's next sequence number at a counter sample."""
        number = next_number(self._torch)
        if number is None:
            return
        counter_samples, numbers = self._columns()
        counter_samples.append(sample)
        numbers.append(number)
        if len(counter_samples) >= MAX_SAMPLES:
            del counter_samples[: MAX_SAMPLES // 2], numbers[: MAX_SAMPLES // 2]

    def first_sample_after(self, number: int) -> int | None:
        """Return the first sample by which a node existed.

        None if it was created after all samples of this thread.
        """
        counter_samples, numbers = self._columns()
        at = bisect_right(numbers, number)  # the next number is larger than assigned ones
        return counter_samples[at] if at < len(counter_samples) else None

    def _columns(self) -> tuple[array[int], array[int]]:
        found: tuple[array[int], array[int]] | None = getattr(self._local, "columns", None)
        if found is None:
            found = self._local.columns = array("q"), array("Q")
        return found
