"""Time for which streams are busy with `torch.cuda._sleep`.

No code waits for that time to pass. All other work of a virtual card is complete at once, and a
synchronization ends the sleep.
"""

from __future__ import annotations

from nbmem.core.runtime.clock import CLOCK

CLOCK_HZ = 1.98e9
"""The clock of an H100, which counts the cycles of a sleep."""


def now_ns() -> int:
    """Return this machine's performance counter, in ns."""
    return CLOCK.perf_counter_ns()


class StreamTiming:
    """The time until which each stream of a card sleeps, by handle."""

    def __init__(self) -> None:
        self._until: dict[int, int] = {}

    def sleep(self, stream: int, cycles: int) -> None:
        """Queue a sleep of some cycles behind a stream's earlier work."""
        self._until[stream] = self.finish_ns(stream) + int(cycles / CLOCK_HZ * 1e9)

    def finish_ns(self, stream: int) -> int:
        """Return when a stream finishes all work queued now, in ns of CLOCK."""
        return max(now_ns(), self._until.get(stream, 0))

    def delay_until(self, stream: int, until: int) -> None:
        """Start a stream's later work no sooner than `until`."""
        if until > now_ns():
            self._until[stream] = max(until, self._until.get(stream, 0))

    def has_reached(self, stream: int, until: int) -> bool:
        """Return whether a stream has reached `until` or was synchronized since."""
        return min(until, self._until.get(stream, 0)) <= now_ns()

    def clear(self, stream: int | None = None) -> None:
        """End the sleep of a synchronized stream; None: of all streams."""
        if stream is None:
            self._until.clear()
        else:
            self._until.pop(stream, None)
