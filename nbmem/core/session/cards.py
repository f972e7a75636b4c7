"""Which card of several a recording is about, where nobody has named one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import GIVES_BACK, TAKES, Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nbmem.core.session.events import Events, Layout
    from nbmem.core.session.session import DeviceTrace


def fullest(devices: Sequence[DeviceTrace]) -> int:
    """Index of the card that held the most memory at its highest; of equals the busier one."""

    def rank(index: int) -> tuple[int, int]:
        trace = devices[index]
        return highest_reserved(trace.events, trace.end), len(trace.events)

    return max(range(len(devices)), key=rank)


def highest_reserved(events: Events, end: Layout) -> int:
    """The most bytes held from the driver, worked out backwards from the end."""
    return int(reserved_before(events, end).max())


def reserved_before(events: Events, end: Layout) -> NDArray[np.int64]:
    """Bytes held from the driver before each event, and at the end, worked out backwards."""
    return before_each(events, TAKES, GIVES_BACK, int(end.segments.size.sum()))


def before_each(
    events: Events, more: Sequence[Action], less: Sequence[Action], at_end: int
) -> NDArray[np.int64]:
    """A sum of bytes before each event, and at the end.

    Args:
        events: One card's events.
        more: Actions that add their bytes to it.
        less: Actions that take their bytes from it.
        at_end: The sum after the last event.
    """
    change = np.where(np.isin(events.action, more), events.size, 0)
    change -= np.where(np.isin(events.action, less), events.size, 0)
    return np.append(at_end - np.cumsum(change[::-1])[::-1], at_end)
