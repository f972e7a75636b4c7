"""The newest events of a card's memory history, as columns.

A tuple for each event would count as an object for Python's collector. The columns hold integers,
texts and stacks of torch's, which the collector does not track.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._profiler import CapturedTraceback

    from nbmem.core.session.events import Action

    Entry = tuple[Action, int, int, int, int, str, CapturedTraceback | None]


class EventRing(NamedTuple):
    """The columns of the ring, one value per event, oldest first.

    Attributes:
        action: What the allocator did.
        addr: The address.
        size: Bytes.
        stream: The stream.
        time_us: When, microseconds since the epoch.
        label: The text that the thread had set for its allocations.
        stack: Where; None where no stack was wanted.
    """

    action: deque[Action]
    addr: deque[int]
    size: deque[int]
    stream: deque[int]
    time_us: deque[int]
    label: deque[str]
    stack: deque[CapturedTraceback | None]

    def add(self, *entry: Any) -> None:
        """Append one event and drop the oldest one if the ring is full."""
        for column, value in zip(self, entry, strict=True):
            column.append(value)  # type: ignore[attr-defined]

    def entries(self) -> Iterator[Entry]:
        """Return an iterator over a copy of the events, oldest first."""
        return zip(*[tuple(column) for column in _columns(self)], strict=True)


def ring_of(most: int, kept: EventRing | None = None) -> EventRing:
    """Create a ring of at most `most` events, with another ring's newest."""
    columns = [()] * len(EventRing._fields) if kept is None else _columns(kept)
    return EventRing._make(deque(column, maxlen=most) for column in columns)


def _columns(ring: EventRing) -> tuple[deque[Any], ...]:
    return tuple(ring)
