"""Simulate a failed request and its step again, with one change.

Freeing memory before the failed line is simulated on the layout of that moment, in which the other
blocks keep their addresses. Other settings and sizes are simulated from the start of the recording.
That is done only if the unchanged replay fails at the same request; otherwise it proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import SimulatedDriver
from nbmem.allocator.heap import AllocatorOOM
from nbmem.allocator.recordings.restore import restore
from nbmem.report.analysis.oom.continuations.continuation import LIVE, NEVER, Continuation
from nbmem.report.analysis.oom.failed_request import FailedRequest, layout
from nbmem.report.analysis.what_if import begin_replay

if TYPE_CHECKING:
    from nbmem.report.analysis.replay_variants import AllocatorReplay

MAX_EVENTS = 500_000
"""Recordings up to this long are replayed from their start (two seconds each time)."""
LONG_EVENTS = 200_000
"""Recordings from this length on are replayed few times."""


class ReplayEnd(NamedTuple):
    """The end of a replay.

    Attributes:
        position: The request that fails; NEVER if none does. A position below zero is before the
            failed request of the recording.
        left: Bytes that are free at its end.
    """

    position: float
    left: int = 0


def replay_from_layout(
    case: FailedRequest,
    then: Continuation,
    *,
    freed: Iterable[int] = (),
    capacity: int | None = None,
) -> ReplayEnd:
    """Run a continuation from the recorded layout.

    Args:
        case: The failed request.
        then: What follows, from the failed request on.
        freed: Allocations that are freed just before it.
        capacity: Bytes that may be reserved; None for the capacity at that time.
    """
    total = case.capacity if capacity is None else capacity
    recorded = layout(case)
    driver = SimulatedDriver(total)
    driver.used = int(recorded.segments.size.sum())
    allocator = CachingAllocator(
        total_bytes=total,
        release=case.card_ledger.trace.release,
        settings=replace(case.settings, per_process_memory_fraction=None),
        driver=driver,
    )
    restore(allocator, recorded)
    addr = case.card_ledger.allocations.addr
    live = case.card_ledger.live(case.index).tolist()
    places = {row: int(addr[row]) for row in live if int(addr[row]) in allocator.live}
    for row in freed:
        if row in places:
            allocator.free(places.pop(row))
    return _run(allocator, places, then)


class FailureReplay:
    """A replay of the recording up to the failed request, with changes.

    Attributes:
        faithful: Whether the unchanged replay fails at that request and not before. Otherwise a
            changed replay shows nothing.
        is_long: Whether each replay takes so long that few should be made.
    """

    def __init__(self, case: FailedRequest) -> None:
        self._case = case
        failed = case.card_ledger.refused.errors
        self._may_fail = frozenset(at for at in failed if at != case.index)
        self.is_long = case.index >= LONG_EVENTS
        is_short = case.index < MAX_EVENTS and not case.card_ledger.trace.dropped
        self.faithful = is_short and self._replay(None, {}, case.index + 1)[1] == case.index

    def replay(
        self,
        then: Continuation,
        *,
        conf: str | None = None,
        resized: Mapping[int, int] | None = None,
    ) -> ReplayEnd:
        """Return where recording and continuation run out of memory.

        Args:
            then: What follows, from the failed request on, with the sizes to try.
            conf: Allocator settings that are added to those in force.
            resized: Other bytes for the requests of some events.
        """
        run, refused = self._replay(conf, resized or {}, self._case.index)
        if refused is not None:
            return ReplayEnd(refused - self._case.index)
        addr = self._case.card_ledger.allocations.addr
        rows = self._case.card_ledger.live(self._case.index).tolist()
        places = {row: run.at[int(addr[row])] for row in rows if int(addr[row]) in run.at}
        return _run(run.allocator, places, then)

    def _replay(
        self, conf: str | None, resized: Mapping[int, int], count: int
    ) -> tuple[AllocatorReplay, int | None]:
        case = self._case
        run = begin_replay(case.card_ledger, conf, case.capacity, may_fail=self._may_fail)
        return run, run.replay(count, frozenset(), resized).refused


def _run(allocator: CachingAllocator, places: dict[int, int], then: Continuation) -> ReplayEnd:
    """Run a continuation until it runs out of memory.

    Args:
        allocator: The allocator at the failed request.
        places: Address of each live allocation in it, by row.
        then: What follows.
    """
    blocks = then.blocks
    todo = [(block.freed_at, 0, at) for at, block in enumerate(blocks) if block.freed_at != NEVER]
    todo += [
        (block.requested_at, 1, at) for at, block in enumerate(blocks) if block.requested_at != LIVE
    ]
    held = {
        at: places[block.row]
        for at, block in enumerate(blocks)
        if block.requested_at == LIVE and block.row in places
    }
    for position, is_request, at in sorted(todo):
        if not is_request:
            if at in held:
                allocator.free(held.pop(at))
            continue
        try:
            held[at] = allocator.malloc(blocks[at].size, blocks[at].stream)
        except AllocatorOOM:
            return ReplayEnd(position)
    return ReplayEnd(NEVER, allocator.total_bytes - allocator.allocated)
