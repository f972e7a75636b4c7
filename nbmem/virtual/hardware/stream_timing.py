"""Time for which streams are busy with `torch.cuda._sleep`.

No code waits for that time to pass. All other work of a virtual card is complete at once, and a
synchronization moves the streams' clock forward to the end of the sleep.
"""

from __future__ import annotations

from typing import ClassVar

from nbmem.core.runtime.clock import CLOCK

CLOCK_HZ = 1.98e9
"""The clock of an H100, which counts the cycles of a sleep."""


class StreamTiming:
    """The time until which each stream of a card sleeps, by handle."""

    _skipped_ns: ClassVar[int] = 0  # by synchronizations; one clock for all cards

    def __init__(self) -> None:
        self._until: dict[int, int] = {}

    @classmethod
    def now_ns(cls) -> int:
        """Return the streams' clock: CLOCK and what synchronizations skipped."""
        return CLOCK.perf_counter_ns() + cls._skipped_ns

    def sleep(self, stream: int, cycles: int) -> None:
        """Queue a sleep of some cycles behind a stream's earlier work."""
        self._until[stream] = self.finish_ns(stream) + int(cycles / CLOCK_HZ * 1e9)

    def finish_ns(self, stream: int) -> int:
        """Return when a stream finishes all work queued now, in ns of the clock."""
        return max(self.now_ns(), self._until.get(stream, 0))

    def delay_until(self, stream: int, until: int) -> None:
        """Start a stream's later work no sooner than `until`."""
        self._until[stream] = max(until, self._until.get(stream, 0))

    def wait_until(self, until: int) -> None:
        """Skip the time until `until`, as a host that waits for it."""
        StreamTiming._skipped_ns += max(0, until - self.now_ns())

    def wait(self, stream: int | None = None) -> None:
        """Skip the time until a stream has finished; None: until all have."""
        streams = self._until if stream is None else (stream,)
        self.wait_until(max(map(self.finish_ns, streams), default=0))
