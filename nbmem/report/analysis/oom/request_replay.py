"""Simulate the failed request again with one thing changed.

A remedy is reported only if the unchanged replay fails where the recording failed; else the
simulation shows nothing. Memory freed just before the line is tried on the layout of that moment:
its neighbours stay in place.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import SimulatedDriver
from nbmem.allocator.heap import AllocatorOOM
from nbmem.allocator.recordings.restore import restore
from nbmem.core.session.events import Action
from nbmem.report.analysis.oom.failed_request import layout
from nbmem.report.analysis.what_if import try_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from nbmem.report.analysis.oom.failed_request import FailedRequest

    Ints = NDArray[np.int64]

MOST_EVENTS = 200_000
"""Recordings up to this long are replayed from their start (half a second each time)."""
_NOWHERE = 1 << 61
"""An address that no event has: the failed request gets it when it is served."""


def served_now(
    case: FailedRequest, *, freed: Ints | None = None, capacity: int | None = None
) -> bool:
    """Return whether the request is served at its moment, with changes.

    Args:
        case: The failed request.
        freed: Allocations that are freed just before it; None for none.
        capacity: Bytes that may be reserved; None for the capacity at that time.
    """
    total = case.capacity if capacity is None else capacity
    at = layout(case)
    driver = SimulatedDriver(total)
    driver.used = int(at.segments.size.sum())
    allocator = CachingAllocator(
        total_bytes=total,
        release=case.card_ledger.trace.release,
        settings=replace(case.settings, per_process_memory_fraction=None),
        driver=driver,
    )
    restore(allocator, at)
    if freed is not None:
        for addr in case.card_ledger.allocations.addr[freed].tolist():
            if addr in allocator.live:
                allocator.free(addr)
    try:
        allocator.malloc(case.size, case.stream)
    except AllocatorOOM:
        return False
    return True


class FailureReplay:
    """A replay of the recording up to the failed request, with changes.

    Attributes:
        faithful: Whether the unchanged replay fails at that request and not before. Otherwise a
            changed replay shows nothing.
    """

    def __init__(self, case: FailedRequest) -> None:
        self._case = case
        events = case.card_ledger.trace.events[: case.index + 1]
        action, addr = events.action.copy(), events.addr.copy()
        action[case.index], addr[case.index] = Action.ALLOC, _NOWHERE
        self._events = replace(events, action=action, addr=addr)
        short = case.index < MOST_EVENTS and not case.card_ledger.trace.dropped
        self.faithful = short and self._refused_at() == case.index

    def served(self, *, conf: str | None = None, resized: Mapping[int, int] | None = None) -> bool:
        """Return whether the replay serves all requests and the failed one.

        False if the unchanged replay is not faithful.

        Args:
            conf: Allocator settings that are added to those in force.
            resized: Other bytes for the requests of some events.
        """
        return self.faithful and self._refused_at(conf, resized) is None

    def requested(self, event: int) -> int:
        """Return the bytes that an event requested."""
        return int(self._events.size[event])

    def _refused_at(
        self, conf: str | None = None, resized: Mapping[int, int] | None = None
    ) -> int | None:
        card_ledger = copy.copy(self._case.card_ledger)
        card_ledger.trace = replace(card_ledger.trace, events=self._events)
        limit, last = self._case.capacity, len(self._events)
        return try_settings(card_ledger, conf, limit=limit, resized=resized, last=last).refused
