"""Replay the recorded requests with other settings or another order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import SimulatedDriver
from nbmem.allocator.heap import AllocatorOOM
from nbmem.allocator.recordings.inference import pools_of
from nbmem.core.session.events import Action
from nbmem.report.analysis.cache_releases import recording_of, releases

if TYPE_CHECKING:
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.session.session import DeviceTrace

NO_LIMIT = 1 << 60
_OTHER_STREAM = -1
"""Represents any other stream that used a block."""

_ALLOC, _FREE, _COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """The result of a replay.

    Attributes:
        peak_allocated: Highest allocated bytes.
        peak_reserved: Highest bytes held from the driver.
        reserved: Bytes held from the driver at the end.
        events: How many events were replayed.
        refused: Index of the event that ran out of memory; None if none did. Under a limit the
            requests that failed in the recording are tried, too. The requests that would have
            followed them are not known.
        retries: How often cached memory was released because the driver had no more.
    """

    peak_allocated: int
    peak_reserved: int
    reserved: int
    events: int
    refused: int | None = None
    retries: int = 0


class _RecordedAddressDriver(SimulatedDriver):
    """A simulated driver that returns the recorded addresses if it can.

    Up to torch 2.11 blocks of equal size are ordered by address, and a real driver's addresses do
    not only ascend.
    """

    def __init__(self, trace: DeviceTrace, total_bytes: int) -> None:
        super().__init__(total_bytes)
        events = trace.events
        self._recorded: dict[int, deque[int]] = {}
        self._held: dict[int, int] = {}
        for at in np.flatnonzero(events.action == Action.SEGMENT_ALLOC).tolist():
            addrs = self._recorded.setdefault(int(events.size[at]), deque())
            addrs.append(int(events.addr[at]))

    def malloc(self, size: int) -> int | None:
        """Return the next recorded address for this size if it is free here.

        Otherwise returns the address of the simulated driver.
        """
        addr = super().malloc(size)
        recorded = self._recorded.get(size)
        if addr is not None and recorded:
            recorded_addr = recorded.popleft()
            if all(
                recorded_addr + size <= a or a + s <= recorded_addr for a, s in self._held.items()
            ):
                addr = recorded_addr
        if addr is not None:
            self._held[addr] = size
        return addr

    def free(self, addr: int, size: int) -> None:
        """Free what malloc returned."""
        super().free(addr, size)
        self._held.pop(addr, None)


class AllocatorReplay:
    """One replay of a card's recorded requests."""

    def __init__(
        self,
        trace: DeviceTrace,
        settings: AllocatorSettings,
        limit: int | None,
        *,
        at_once: bool = False,
        may_fail: Collection[int] = (),
    ) -> None:
        self.at_once, self.may_fail = at_once, may_fail
        self.events = trace.events
        recording = recording_of(trace)
        self.pools: Mapping[int, int] = pools_of(recording)
        self.emptied = {at for at, by_user in releases(recording).items() if by_user}
        self.limited = limit is not None
        self.allocator = CachingAllocator(
            total_bytes=NO_LIMIT if limit is None else limit,
            release=trace.release,
            settings=settings,
            driver=_RecordedAddressDriver(trace, NO_LIMIT if limit is None else limit),
        )
        self.at: dict[int, int] = {}
        self.deferred: set[int] = set()

    def begin(self, old: list[tuple[int, int]]) -> None:
        """Allocate the blocks that existed before the recording."""
        for addr, size in old:
            self.at[addr] = self.allocator.malloc(size, 0)

    def rehearse(self, first: int, last: int) -> None:
        """Replay the events of a range once; free what is live at its end."""
        addresses: dict[int, int] = {}
        for action, addr, size, stream in self._rows(first, last):
            if action == _ALLOC:
                addresses[addr] = self.allocator.malloc(size, stream)
            elif action in (_FREE, _COMPLETED) and addr in addresses:
                self.allocator.free(addresses.pop(addr))
        for addr in addresses.values():
            self.allocator.free(addr)

    def repeat(
        self, first: int, last: int, once: Collection[int], instead: Mapping[int, int]
    ) -> None:
        """Replay a range of events once more after its first run.

        Args:
            first: Position at which the range begins.
            last: Position at which it ends.
            once: Positions of requests that are not repeated.
            instead: For requests whose block outlived the range: their position, and the position
                that frees the first run's block.
        """
        goes: dict[int, list[int]] = {}
        for born, at in instead.items():
            where = self.at.get(int(self.events.addr[born]))
            if where is not None:
                goes.setdefault(at, []).append(where)
        addresses: dict[int, int] = {}
        for index, (action, addr, size, stream) in enumerate(self._rows(first, last), first):
            for where in goes.pop(index, ()):
                self.allocator.free(where)
            if action == _ALLOC and index not in once:
                addresses[addr] = self._malloc(index, size, stream)
            elif action in (_FREE, _COMPLETED) and addr in addresses:
                self.allocator.free(addresses.pop(addr))

    def replay(
        self,
        count: int,
        empty_at: Collection[int],
        resized: Mapping[int, int],
        sooner: Mapping[int, Sequence[int]] | None = None,
    ) -> ReplayOutcome:
        """Replay the first events, with changes.

        Args:
            count: Number of events.
            empty_at: Positions of additional calls of torch.cuda.empty_cache().
            resized: Other sizes for the requests at these positions; 0 leaves one out.
            sooner: By position, recorded addresses of blocks that are freed there already.
        """
        allocator = self.allocator
        refused, index = None, 0
        has_free_requests = bool((self.events.action == _FREE).any())
        for index, (action, addr, size, stream) in enumerate(self._rows(0, count)):
            for gone in sooner.get(index, ()) if sooner else ():
                allocator.free(self.at.pop(gone))
            if index in empty_at or index in self.emptied:
                allocator.empty_cache()
            try:
                if action == _ALLOC and (wanted := resized.get(index, size)):
                    self.at[addr] = self._malloc(index, wanted, stream)
                elif action == Action.OOM and self.limited:  # can it be served here?
                    allocator.free(allocator.malloc(size, stream))
            except AllocatorOOM:
                if index in self.may_fail:
                    continue
                refused = index
                break
            if action == _FREE:
                self._free(index, addr)
            elif action == _COMPLETED:
                self._complete(addr, freed=has_free_requests)
        return self.outcome(index, refused)

    def _malloc(self, index: int, size: int, stream: int) -> int:
        pool = self.pools.get(index)
        if pool is None or not size:
            return self.allocator.malloc(size, stream)
        self.allocator.begin_pool(pool)
        try:
            return self.allocator.malloc(size, stream)
        finally:
            self.allocator.end_pool(pool)

    def _free(self, index: int, addr: int) -> None:
        where = self.at.get(addr)
        if where is None:
            return
        events = self.events
        follows = index + 1 < len(events) and events.action[index + 1] == _COMPLETED
        # Another stream used the block: the free was completed later.
        if not self.at_once and not (follows and events.addr[index + 1] == addr):
            self.allocator.record_stream(where, _OTHER_STREAM)
            self.deferred.add(where)
        self.allocator.free(where)

    def _complete(self, addr: int, *, freed: bool) -> None:
        where = self.at.pop(addr, None)
        if where is None:
            return
        if not freed:
            self.allocator.free(where)
        elif where in self.deferred:
            self.deferred.discard(where)
            self.allocator.complete_streams()

    def _rows(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        e = self.events
        yield from zip(
            e.action[first:last].tolist(),
            e.addr[first:last].tolist(),
            e.size[first:last].tolist(),
            e.stream[first:last].tolist(),
            strict=True,
        )

    def outcome(self, index: int, refused: int | None) -> ReplayOutcome:
        """Return the result of the replay so far."""
        stats = self.allocator.memory_stats()
        return ReplayOutcome(
            peak_allocated=stats["allocated_bytes"]["all"]["peak"],
            peak_reserved=stats["reserved_bytes"]["all"]["peak"],
            reserved=self.allocator.reserved,
            events=index + 1,
            refused=refused,
            retries=stats["num_alloc_retries"],
        )
