"""What the allocator would have done: other settings, another order, tried on the recorded events.

Only the requests are replayed (every alloc and free, in their order); where memory lies, and how
much is taken from the driver for it, is the simulated allocator's answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.adopt import adopt
from nbmem.allocator.assume import pools_of
from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import SimulatedDriver
from nbmem.allocator.heap import AllocatorOOM
from nbmem.allocator.settings import AllocatorSettings
from nbmem.analysis.releases import recording_of, releases
from nbmem.core.events import Action

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from nbmem.core.session import DeviceTrace
    from nbmem.ledger.books import Books

MOST_EVENTS = 100_000
"""Events that are replayed at most (a fifth of a second); figures then speak of these alone."""
_NO_LIMIT = 1 << 60
_OTHER_STREAM = -1
"""Stands for whichever other stream used a block."""

_ALLOC, _FREE, _COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a replay came to.

    Attributes:
        peak_allocated: Highest allocated bytes.
        peak_reserved: Highest bytes held from the driver.
        reserved: Bytes held from the driver at the end.
        events: How many events were replayed.
        refused: Index of the event that ran out of memory; None if none did. Under a limit the
            requests that failed in the recording are tried, too; what would have come behind them
            nobody knows.
        retries: How often cached memory was given back because the driver had no more.
    """

    peak_allocated: int
    peak_reserved: int
    reserved: int
    events: int
    refused: int | None = None
    retries: int = 0


def releasable(books: Books, position: int) -> int:
    """Bytes that empty_cache() would give back at a position: pieces of used segments stay."""
    return int(books.followed.releasable[position])


def try_settings(  # noqa: PLR0913 - each names one thing that could have been otherwise
    books: Books,
    conf: str | None = None,
    *,
    limit: int | None = None,
    empty_at: Collection[int] = (),
    resized: Mapping[int, int] | None = None,
    last: int | None = None,
) -> Outcome:
    """Replay the recorded requests.

    What lived before the recording is taken anew, in the order of its addresses.

    Args:
        books: The card's books.
        conf: Text of PYTORCH_CUDA_ALLOC_CONF that is added to what is in force; None: nothing.
        limit: Bytes that may be reserved; None: as many as it takes.
        empty_at: Positions at which torch.cuda.empty_cache() is called, too.
        resized: Other bytes for the requests at these positions; 0 leaves one out.
        last: Position at which to stop; None: at the end, or after MOST_EVENTS.

    Raises:
        UsageError: torch refuses the text.
    """
    trace = books.trace
    run = _Run(trace, _settings(trace, conf), limit)
    run.begin(_old(books))
    count = min(len(trace.events), MOST_EVENTS if last is None else last)
    return run.go(count, frozenset(empty_at), resized or {})


def try_longest_first(books: Books, first: int, last: int) -> Outcome:
    """Replay with the stretch `first` to `last` (the largest step) run once before everything.

    Known as warming up with the longest batch: every later one finds blocks that are large enough.
    """
    trace = books.trace
    run = _Run(trace, _settings(trace, None), None)
    run.begin(_old(books))
    run.rehearse(first, last)
    return run.go(min(len(trace.events), MOST_EVENTS), frozenset(), {})


def try_again(books: Books, first: int, last: int) -> Outcome:
    """Replay the recording, and its stretch `first` to `last` (an iteration) once more behind it.

    What was made there and lived on to the end (a workspace) is not made again.
    """
    trace, a = books.trace, books.followed.allocations
    run = _Run(trace, _settings(trace, None), None)
    run.begin(_old(books))
    run.go(len(trace.events), frozenset(), {})
    run.rehearse(first, last, frozenset(a.born[a.freed >= books.events].tolist()))
    return run.outcome(len(trace.events), None)


def with_conf(trace: DeviceTrace, conf: str) -> str:
    """The whole text of PYTORCH_CUDA_ALLOC_CONF: what is in force, with `conf` added."""
    now = str(trace.settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
    keys = {part.partition(":")[0].strip() for part in conf.split(",")}
    kept = [p for p in now.split(",") if p and p.partition(":")[0].strip() not in keys]
    return ",".join([*kept, conf])


def in_force(trace: DeviceTrace) -> AllocatorSettings:
    """The settings under which the recording was made."""
    return AllocatorSettings.from_torch(trace.settings, trace.release)


def _settings(trace: DeviceTrace, conf: str | None) -> AllocatorSettings:
    now = in_force(trace)
    now = replace(now, per_process_memory_fraction=None, garbage_collection_threshold=0.0)
    return now if conf is None else now.updated(with_conf(trace, conf), trace.release)


def _old(books: Books) -> list[tuple[int, int]]:
    """(address, bytes asked for) of what lived before the recording, by address."""
    a = books.followed.allocations
    rows = np.flatnonzero((a.born < 0) & (a.freed >= 0))
    return list(zip(a.addr[rows].tolist(), a.requested[rows].tolist(), strict=True))


class _AsRecorded(SimulatedDriver):
    """Hands out the recorded addresses where it can.

    Up to torch 2.11 they decide between blocks of one size, and a real driver's do not just rise.
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
        """The next recorded address for this size, unless something else lies there here."""
        addr = super().malloc(size)
        recorded = self._recorded.get(size)
        if addr is not None and recorded:
            wish = recorded.popleft()
            if all(wish + size <= a or a + s <= wish for a, s in self._held.items()):
                addr = wish
        if addr is not None:
            self._held[addr] = size
        return addr

    def free(self, addr: int, size: int) -> None:
        """Take back what malloc handed out."""
        super().free(addr, size)
        self._held.pop(addr, None)


class _Run:
    """One replay."""

    def __init__(self, trace: DeviceTrace, settings: AllocatorSettings, limit: int | None) -> None:
        self.events = trace.events
        recording = recording_of(trace)
        self.pools: Mapping[int, int] = pools_of(recording)
        self.emptied = {at for at, by_user in releases(recording).items() if by_user}
        self.limited = limit is not None
        self.allocator = CachingAllocator(
            total_bytes=_NO_LIMIT if limit is None else limit,
            release=trace.release,
            settings=settings,
            driver=_AsRecorded(trace, _NO_LIMIT if limit is None else limit),
        )
        self.at: dict[int, int] = {}
        self.deferred: set[int] = set()

    def begin(self, old: list[tuple[int, int]]) -> None:
        for addr, size in old:
            self.at[addr] = self.allocator.malloc(size, 0)

    def rehearse(self, first: int, last: int, without: Collection[int] = ()) -> None:
        """Run a stretch's own requests once; what it does not free itself is freed at its end."""
        mine: dict[int, int] = {}
        for index, (action, addr, size, stream) in enumerate(self._rows(first, last), first):
            if action == _ALLOC and index not in without:
                mine[addr] = self.allocator.malloc(size, stream)
            elif action in (_FREE, _COMPLETED) and addr in mine:
                self.allocator.free(mine.pop(addr))
        for addr in mine.values():
            self.allocator.free(addr)

    def go(self, count: int, empty_at: Collection[int], resized: Mapping[int, int]) -> Outcome:
        allocator = self.allocator
        refused, index = None, 0
        requested = bool((self.events.action == _FREE).any())
        for index, (action, addr, size, stream) in enumerate(self._rows(0, count)):
            if index in empty_at or index in self.emptied:
                allocator.empty_cache()
            try:
                if action == _ALLOC and (wanted := resized.get(index, size)):
                    self.at[addr] = self._malloc(index, wanted, stream)
                elif action == Action.OOM and self.limited:  # would it be served here?
                    allocator.free(allocator.malloc(size, stream))
            except AllocatorOOM:
                refused = index
                break
            if action == _FREE:
                self._free(index, addr)
            elif action == _COMPLETED:
                self._complete(addr, freed=requested)
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
        if not (follows and events.addr[index + 1] == addr):
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

    def outcome(self, index: int, refused: int | None) -> Outcome:
        """What it came to so far."""
        stats = self.allocator.memory_stats()
        return Outcome(
            peak_allocated=stats["allocated_bytes"]["all"]["peak"],
            peak_reserved=stats["reserved_bytes"]["all"]["peak"],
            reserved=self.allocator.reserved,
            events=index + 1,
            refused=refused,
            retries=stats["num_alloc_retries"],
        )


def try_more(books: Books, sizes: Sequence[int]) -> tuple[int, int]:
    """Bytes by which allocated and reserved grow if these requests come after the recording."""
    trace = books.trace
    allocator = CachingAllocator(
        total_bytes=_NO_LIMIT, release=trace.release, settings=_settings(trace, None)
    )
    adopt(allocator, trace.end)
    allocated, reserved = allocator.allocated, allocator.reserved
    for size in sizes:
        allocator.malloc(size, 0)
    return allocator.allocated - allocated, allocator.reserved - reserved
