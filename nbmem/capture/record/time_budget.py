"""Limit the share of the run's time that repeated scans may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from nbmem.core.runtime.clock import CLOCK

GRACE_S = 0.1
"""Seconds that scans may always take: not noticeable in a short cell."""
SHARE = 0.02
"""Fraction of the time since the first scan that all scans together may take."""
ALWAYS = 3
"""First scans of a kind that are always granted."""


class TimeBudget:
    """A time budget for scans that are repeated during a recording.

    Scans are granted while they are cheap: a network of small layers has an expensive graph. Their
    time is this thread's CPU time, so a busy machine does not lose names.

    Attributes:
        refused: How many scans of each kind were not granted.
    """

    def __init__(self) -> None:
        self.refused: Counter[Hashable] = Counter()
        self._begun: float | None = None
        self._spent = 0.0
        self._looks: Counter[Hashable] = Counter()

    @contextmanager
    def spend(self, kind: Hashable) -> Iterator[bool]:
        """Yield whether a scan is granted, and charge its time to the budget."""
        now, begun = CLOCK.perf_counter(), CLOCK.thread_time()
        self._begun = self._begun or now
        allowed = GRACE_S + SHARE * (now - self._begun)
        granted = self._spent <= allowed or self._looks[kind] < ALWAYS
        self._looks[kind] += granted
        self.refused[kind] += not granted
        try:
            yield granted
        finally:
            self._spent += CLOCK.thread_time() - begun
