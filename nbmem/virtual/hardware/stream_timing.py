"""How long streams are busy with what only passes time (`torch.cuda._sleep`); nobody waits for it.

All other work of a virtual card is done at once. Whoever synchronises finds it done.
"""

from __future__ import annotations

from nbmem.core.runtime.clock import CLOCK

CLOCK_HZ = 1.98e9
"""The clock of an H100, which counts the cycles of a sleep."""


def now_ns() -> int:
    """The time of this machine."""
    return CLOCK.perf_counter_ns()


class Busy:
    """Until when each stream of a card sleeps, by handle."""

    def __init__(self) -> None:
        self._until: dict[int, int] = {}

    def sleep(self, stream: int, cycles: int) -> None:
        """Queue a sleep behind what the stream has to do."""
        self._until[stream] = self.until(stream) + int(cycles / CLOCK_HZ * 1e9)

    def until(self, stream: int) -> int:
        """When a stream will have done all that is queued now, in ns of this machine's clock."""
        return max(now_ns(), self._until.get(stream, 0))

    def waits(self, stream: int, until: int) -> None:
        """Later work of a stream begins no sooner."""
        if until > now_ns():
            self._until[stream] = max(until, self._until.get(stream, 0))

    def done(self, stream: int, until: int) -> bool:
        """Whether a stream has come so far, or somebody has waited for it since."""
        return min(until, self._until.get(stream, 0)) <= now_ns()

    def clear(self, stream: int | None = None) -> None:
        """Somebody waits for a stream; None: for all."""
        if stream is None:
            self._until.clear()
        else:
            self._until.pop(stream, None)
