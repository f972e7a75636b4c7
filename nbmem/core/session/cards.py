"""Choose the card that a recording of several is about by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import GIVES_BACK, TAKES, Action, Events, Layout

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.session import DeviceTrace


def fullest(devices: Sequence[DeviceTrace]) -> int:
    """Return the index of the card with the highest reserved bytes.

    Among cards with equal peaks, the one with more events is returned.
    """

    def rank(index: int) -> tuple[int, int]:
        trace = devices[index]
        return highest_reserved(trace.events, trace.end), len(trace.events)

    return max(range(len(devices)), key=rank)


def highest_reserved(events: Events, end: Layout) -> int:
    """Return the peak of reserved bytes, computed backwards from the end."""
    return int(reserved_before(events, end).max())


def reserved_before(events: Events, end: Layout) -> Ints:
    """Compute the reserved bytes before each event and at the end.

    They are computed backwards from the layout at the end.
    """
    return before_each(events, TAKES, GIVES_BACK, int(end.segments.size.sum()))


def before_each(
    events: Events, more: Sequence[Action], less: Sequence[Action], at_end: int
) -> Ints:
    """Compute a running sum of bytes before each event and at the end.

    Args:
        events: One card's events.
        more: Actions that add their bytes.
        less: Actions that subtract their bytes.
        at_end: The sum after the last event.
    """
    change = np.where(np.isin(events.action, more), events.size, 0)
    change -= np.where(np.isin(events.action, less), events.size, 0)
    return np.append(at_end - np.cumsum(change[::-1])[::-1], at_end)
