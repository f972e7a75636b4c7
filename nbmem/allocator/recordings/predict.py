"""Replay recorded requests in the model and find the first difference."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator import streams
from nbmem.allocator.block_search import would_find
from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.heap import AllocatorOOM
from nbmem.allocator.recordings.block_order import BlockOrder
from nbmem.allocator.recordings.recorded_driver import Divergence, RecordedDriver, describe
from nbmem.allocator.recordings.restore import restore
from nbmem.allocator.rounding import SMALL_LIMIT, round_size, segment_bytes
from nbmem.core.errors import NbmemError
from nbmem.core.session.events import GIVES_BACK, TAKES, Action

if TYPE_CHECKING:
    from nbmem.allocator.recordings.recorded_driver import DriverEvent
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.session.events import Events, Layout

_USER_OF_STREAMS = -1
"""Stands for any other stream that used a block: a recording has only the time when it was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Facts that the model needs and a recording does not contain.

    Attributes:
        total_bytes: The card's bytes; they decide only how long virtual ranges are.
        limit: Bytes that may be reserved, set by a memory fraction; None: no limit.
        emptied: Events that gave memory back because the user called empty_cache().
        pools: Private pool of an allocation, by event index; others are in the default pool.
    """

    total_bytes: int
    limit: int | None = None
    emptied: Collection[int] = ()
    pools: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference between the model and the recording.

    Attributes:
        event: Index of the event that was replayed.
        recorded: What the recording did.
        model: What the model did.
        after_refusal: Whether the model took a release for a refusal of the driver's.
        new_segment: Whether the recording took a new segment where the model had a free block.
    """

    event: int
    recorded: str
    model: str
    after_refusal: bool = False
    new_segment: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the event index and both behaviours as JSON."""
        return {"event": self.event, "recorded": self.recorded, "model": self.model}


class Prediction:
    """One run of the model beside a recording.

    Args:
        start: Every segment and block before the first event.
        events: The recording, of which only requests and the driver's results are used.
        settings: The allocator's settings.
        release: The release whose rules are tried.
        assumptions: What the recording does not contain.
    """

    def __init__(
        self,
        start: Layout,
        events: Events,
        settings: AllocatorSettings,
        release: str,
        assumptions: Assumptions,
    ) -> None:
        self.events = events
        self.assumptions = assumptions
        self._due: deque[DriverEvent] = deque()
        self._due_from = 0
        self.driver = RecordedDriver(self._due)
        self.allocator = CachingAllocator(
            total_bytes=assumptions.total_bytes,
            release=release,
            settings=settings,
            driver=self.driver,
        )
        restore(self.allocator, start)
        self.order = BlockOrder(self.allocator)
        if assumptions.limit is not None:
            self.allocator.limit = assumptions.limit
            self.allocator.refresh()
        self._highest = self._highest_reserved(start)
        self._skips_requests = not (events.action == Action.FREE_REQUESTED).any()

    def _highest_reserved(self, start: Layout) -> int:
        sign = np.zeros(len(Action), np.int64)
        sign[[*TAKES]] = 1
        sign[[*GIVES_BACK]] = -1
        held = np.cumsum(sign[self.events.action] * self.events.size)
        return int(start.segments.size.sum()) + int(held.max(initial=0))

    def run(
        self, stops: Mapping[int, Callable[[CachingAllocator], None]] | None = None
    ) -> Difference | None:
        """Replay all events; return the first difference, or None.

        Args:
            stops: Called before the event with this index; the number of events: at the end.
        """
        stops = stops or {}
        rows = zip(
            self.events.action.tolist(),
            self.events.addr.tolist(),
            self.events.size.tolist(),
            self.events.stream.tolist(),
            strict=True,
        )
        index = 0
        try:
            for index, (action, addr, size, stream) in enumerate(rows):
                if index in stops:
                    self._empty_cache_if_due(index)
                    stops[index](self.allocator)
                self._step(index, Action(action), addr, size, stream)
            index = len(self.events)
            self._empty_cache_if_due(index)
            if index in stops:
                stops[index](self.allocator)
        except Divergence as met:
            return Difference(
                event=index,
                recorded=met.recorded,
                model=met.model,
                after_refusal=met.after_refusal,
            )
        except _NewSegment as met:
            return Difference(event=index, recorded=met.recorded, model=met.model, new_segment=True)
        except NbmemError as err:
            return Difference(event=index, recorded="went on", model=f"stopped: {err}")
        return None

    def _step(self, index: int, action: Action, addr: int, size: int, stream: int) -> None:
        if action is Action.ALLOC:
            self._alloc(index, addr, size, stream)
        elif action is Action.FREE_REQUESTED:
            self._empty_cache_if_due(index)
            self._free(index, addr)
        elif action is Action.FREE_COMPLETED:
            self._empty_cache_if_due(index)
            self._complete(index, addr)
        elif action is Action.OOM:
            self._out_of_memory(index, addr, size, stream)
        elif action is not Action.SNAPSHOT:
            if not self._due:
                self._due_from = index
            self._due.append((action, addr, size))

    def _free(self, index: int, addr: int) -> None:
        if addr not in self.allocator.live:
            raise Divergence(f"freed {addr:#x}", "has no allocated block there")
        events = self.events
        at_once = (
            index + 1 < len(events)
            and events.action[index + 1] == Action.FREE_COMPLETED
            and events.addr[index + 1] == addr
        )
        if not at_once:
            self.allocator.record_stream(addr, _USER_OF_STREAMS)
        self.allocator.free(addr)

    def _complete(self, index: int, addr: int) -> None:
        if self._skips_requests:
            if addr in self.allocator.live:
                self.allocator.free(addr)
            return
        before = self.events.action[index - 1] if index else -1
        if before == Action.FREE_REQUESTED and self.events.addr[index - 1] == addr:
            return
        for queue in (*self.allocator.queues.values(), self.allocator.deferred):
            for block in queue:
                if block.addr == addr:
                    streams.complete_block(self.allocator, block)
                    return
        raise Divergence(f"completed a free at {addr:#x}", "has no pending block there")

    def _alloc(self, index: int, addr: int, size: int, stream: int) -> None:
        pool = self.assumptions.pools.get(index)
        scoped = pool is not None and size > 0
        if scoped and pool is not None:
            self.allocator.begin_pool(pool)
        try:
            self._prepare(index, size, stream, fails=False)
            got = self.allocator.malloc(size, stream)
            if got != addr and self.order.settle(got, addr):
                got = self.allocator.malloc(size, stream)
        except AllocatorOOM:
            raise Divergence(f"allocated {size} bytes at {addr:#x}", "ran out of memory") from None
        finally:
            if scoped and pool is not None:
                self.allocator.end_pool(pool)
        if got != addr:
            model = f"chose {got:#x}"
            if self._due and self._due[0][0] is Action.SEGMENT_ALLOC:
                raise _NewSegment(describe(self._due[0]), f"had a free block at {got:#x}")
            raise Divergence(f"put {size} bytes at {addr:#x}", model)
        self._nothing_due()

    def _out_of_memory(self, index: int, free: int, size: int, stream: int) -> None:
        self._prepare(index, size, stream, fails=True)
        self.driver.free_bytes = free
        try:
            got = self.allocator.malloc(size, stream)
        except AllocatorOOM:
            self._nothing_due()
        else:
            raise Divergence(f"ran out of memory for {size} bytes", f"found room at {got:#x}")

    def _prepare(self, index: int, size: int, stream: int, *, fails: bool) -> None:
        """Empty the cache if releases before a request were not for it.

        They were then the user's own call of empty_cache().
        """
        self.driver.fails = fails
        self.driver.refused = False
        if self._due and self._due[0][0] in GIVES_BACK:
            by_user = self._due_from in self.assumptions.emptied
            if by_user or not self._may_be_for(size, stream, fails=fails):
                self._empty_cache_if_due(index)

    def _may_be_for(self, size: int, stream: int, *, fails: bool) -> bool:
        """Return whether memory may have been released for a request.

        It was not if a cached block served the request. It was not if more was in use at another
        time: then the driver had memory, and only empty_cache() explains the release. Garbage
        collection explains it, too: if it is enabled, the model itself decides.
        """
        allocator = self.allocator
        divisions = allocator.settings.roundup_power2_divisions
        rounded = round_size(size, divisions)
        pool = allocator.small if rounded <= SMALL_LIMIT else allocator.large
        if allocator.scopes:
            owner = allocator.scopes[-1].pool
            pool = owner.small if pool.small else owner.large
        if would_find(allocator, pool, stream, rounded):
            return False
        if fails or allocator.counts_searches:
            return True
        wanted = segment_bytes(rounded, allocator.settings.large_segment_size)
        return allocator.held + wanted > self._highest

    def _empty_cache_if_due(self, index: int) -> None:
        """Call empty_cache() if segments were released before this event.

        Only requests release memory by themselves, so before anything else the user must have
        called it.
        """
        del index
        if not self._due:
            return
        rest = []
        while self._due and self._due[-1][0] in TAKES:
            rest.append(self._due.pop())
        if self._due:
            self.allocator.empty_cache()
            self._nothing_due()
        self._due.extend(reversed(rest))

    def _nothing_due(self) -> None:
        if self._due:
            raise Divergence(describe(self._due[0]), "did not")


class _NewSegment(Divergence):
    """A divergence in which the recording took new memory.

    The model reused a free block; the recorded request may have been for another pool.
    """
