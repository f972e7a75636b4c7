"""State of one device's allocator, and its rarely called block handling."""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import get_ident
from typing import TYPE_CHECKING

from nbmem.allocator.pool import COUNTER_SHIFT, NEVER, Block, Pool, PrivatePool, Segment
from nbmem.allocator.rounding import MIN_BLOCK, NO_DIVISIONS, SMALL_LIMIT
from nbmem.allocator.statistics import PoolCounters, Statistics
from nbmem.allocator.torch_rules import Rules, TieOrder
from nbmem.core.errors import NbmemError
from nbmem.core.session.events import Action
from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from collections import deque

    from nbmem.allocator.driver import Driver
    from nbmem.allocator.settings import AllocatorSettings

    OnEvent = Callable[[Action, int, int, int], None]


class AllocatorOOM(NbmemError):  # noqa: N818 - as torch names it: OutOfMemoryError
    """An out-of-memory error of the simulated card.

    No block was allocated, but cached memory may have been released to the driver.

    Attributes:
        requested: Bytes of the request.
        rounded: Bytes of the block that was needed.
        segment: Bytes that were requested from the driver.
        free_bytes: Free bytes of the card.
        limit: Bytes that this process may hold; None if nothing limits it.
        total_bytes: Bytes of the card.
        rejected: Whether throw_on_cudamalloc_oom refused it without a retry.
    """

    def __init__(  # noqa: PLR0913 - plain fields
        self,
        *,
        requested: int,
        rounded: int,
        segment: int,
        free_bytes: int,
        limit: int | None,
        total_bytes: int,
        rejected: bool = False,
    ) -> None:
        self.requested = requested
        self.rounded = rounded
        self.segment = segment
        self.free_bytes = free_bytes
        self.limit = limit
        self.total_bytes = total_bytes
        self.rejected = rejected
        allowed = "" if limit is None else f" (limited to {format_bytes(limit)})"
        super().__init__(
            f"CUDA out of memory: {format_bytes(requested)} were asked for, but of "
            f"{format_bytes(total_bytes)}{allowed} only {format_bytes(free_bytes)} are free."
        )


class Scope:
    """A period in which allocations go to a private pool.

    Attributes:
        pool: Where they go.
        streams: Streams whose allocations go there. The set grows during a capture. None: all.
        thread: Only allocations by this thread; None: all.
        capture: Whether a CUDA graph is being captured.
    """

    __slots__ = ("capture", "pool", "streams", "thread")

    def __init__(
        self,
        pool: PrivatePool,
        streams: Collection[int] | None,
        thread: int | None,
        *,
        capture: bool,
    ) -> None:
        self.pool = pool
        self.streams = streams
        self.thread = thread
        self.capture = capture

    def takes(self, stream: int) -> bool:
        """Return whether an allocation of this thread on a stream is included."""
        if self.thread is not None and self.thread != get_ident():
            return False
        return self.streams is None or stream in self.streams


class Heap:
    """State that the parts of the allocator share.

    Use `caching.CachingAllocator`.

    Attributes:
        rules: The release's behaviour.
        driver: The source of memory.
        total_bytes: Bytes of the card, of which fractions are taken.
        limit: Bytes that may be reserved; None: no limit.
        held: Bytes reserved now.
        segments: cudaMalloc segments by address.
        ranges: Virtual ranges by address.
        live: Allocated blocks by address.
        queues: Per stream, freed blocks that wait for it, oldest first.
        completed: Per stream, how many of them it has finished with.
        deferred: Blocks freed during a capture that other streams use.
        recorded_in_capture: Streams recorded during a capture, by block.
    """

    def __init__(
        self,
        total_bytes: int,
        rules: Rules,
        settings: AllocatorSettings,
        driver: Driver,
        on_event: OnEvent | None,
    ) -> None:
        self.total_bytes = total_bytes
        self.rules = rules
        self.driver = driver
        self.limit: int | None = None
        self.fraction = 1.0
        self.held = 0
        self.statistics = Statistics()
        self._total = self.statistics.total
        self.segments: dict[int, Segment] = {}
        self.ranges: dict[int, Segment] = {}
        self.live: dict[int, Block] = {}
        self.private: dict[int, PrivatePool] = {}
        self.freeable: dict[int, PrivatePool] = {}
        self.scopes: list[Scope] = []
        self.queues: dict[int, deque[Block]] = {}
        self.completed: dict[int, int] = {}
        self.deferred: list[Block] = []
        self.recorded_in_capture: dict[Block, set[int]] = {}
        self.emit = on_event
        self.small = Pool(self.statistics.small, small=True)
        self.large = Pool(self.statistics.large, small=False)
        self._spare: list[Block] = []
        # The fast path reads these instead of the settings behind them.
        self._counter = 0
        self._counts_blocks = rules.tie_order is TieOrder.BLOCK
        self._divisions: tuple[int, ...] | None = None
        self._careful_search = False
        self._watch = False
        self._retire_wanted = False
        self.apply(settings)

    def apply(self, settings: AllocatorSettings) -> None:
        """Apply new settings from here on; cached blocks stay as they are."""
        self.settings = settings
        divided = settings.roundup_power2_divisions != NO_DIVISIONS
        self._divisions = settings.roundup_power2_divisions if divided else None
        for pool in self.pools():
            self._set_split_rule(pool)
        self.refresh()

    def refresh(self) -> None:
        """Recompute which shortcuts the fast path may take."""
        settings = self.settings
        self._careful_search = bool(
            settings.max_split_size is not None
            or settings.expandable_segments
            or self.ranges
            or self.counts_searches
        )
        self._watch = self.statistics.pending_seen or settings.max_split_size is not None
        self._retire_wanted = bool(self.deferred) or any(self.completed.values())

    def pools(self) -> list[Pool]:
        """List every pool, the default ones first."""
        return [
            self.small,
            self.large,
            *(pool for owner in self.private.values() for pool in (owner.small, owner.large)),
        ]

    def expandable(self, pool: Pool) -> bool:
        """Return whether new memory of this pool is expandable segments."""
        allowed = pool.owner is None or self.rules.expandable_private_pools
        return self.settings.expandable_segments and allowed

    def _set_split_rule(self, pool: Pool) -> None:
        limit = self.settings.max_split_size
        if pool.owner is not None and pool.owner.no_split:
            pool.least_rest, pool.split_below = NEVER, 0
        elif pool.small or self.expandable(pool):
            pool.least_rest, pool.split_below = MIN_BLOCK, NEVER
        else:
            pool.least_rest = SMALL_LIMIT + 1
            pool.split_below = NEVER if limit is None else limit

    @property
    def counts_searches(self) -> bool:
        """True if garbage collection is on: it needs a limit and a threshold."""
        return self.limit is not None and self.settings.garbage_collection_threshold > 0

    @property
    def capturing(self) -> bool:
        """True while frees and releases are deferred, as in a graph capture."""
        scopes = self.scopes
        if not scopes:
            return False
        return self.rules.scope_counts_as_capture or any(scope.capture for scope in scopes)

    def new_base(self) -> int:
        """Return the counter part of the key for a new segment."""
        if self.rules.tie_order is TieOrder.ADDRESS:
            return 0
        self._counter += 1
        return self._counter << COUNTER_SHIFT

    def base_for_piece(self, block: Block) -> int:
        """Return the counter part of the key for a block cut from `block`."""
        return self.new_base() if self._counts_blocks else block.base

    def reserve(self, pool: Pool, size: int) -> None:
        """Count memory that was taken from the driver."""
        self.held += size
        self.statistics.reserved.add(size, small=pool.small)
        self.statistics.num_device_alloc += 1
        if pool.owner is not None:
            pool.owner.reserved.add(size, small=pool.small)

    def count_released(self, pool: Pool, size: int) -> None:
        """Count memory that was released to the driver."""
        self.held -= size
        self.statistics.reserved.remove(size, small=pool.small)
        self.statistics.num_device_free += 1
        if pool.owner is not None:
            pool.owner.reserved.remove(size, small=pool.small)
            pool.owner.driver_calls -= 1

    def make_free(self, block: Block) -> None:
        """Make a completely freed block free, merged with free neighbours."""
        if self.emit is not None:
            self.emit(Action.FREE_COMPLETED, block.addr, block.requested, block.segment.stream)
        side = block.segment.side
        side.requested_down += block.requested
        pieces = piece_bytes = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.key:
                pieces -= 1
                piece_bytes -= neighbour.size
                block.segment.free.remove(neighbour)
                block.take_in(neighbour)
        if not block.segment.granule:  # expandable segments do not count as split
            if block.prev is not None or block.next is not None:
                pieces += 1
                piece_bytes += block.size
            self.count_pieces(block.segment.pool, pieces, piece_bytes)
        block.age_from = block.segment.pool.searches
        block.segment.free.insert(block)

    def count_allocation(self, side: PoolCounters, size: int, requested: int) -> None:
        """Count an allocated block, as malloc() does inline."""
        total = self._total
        for up, down, peak, amount in (
            ("bytes_up", "bytes_down", "bytes_peak", size),
            ("count_up", "count_down", "count_peak", 1),
            ("requested_up", "requested_down", "requested_peak", requested),
        ):
            setattr(side, up, getattr(side, up) + amount)
            now = getattr(side, up) - getattr(side, down)
            setattr(side, peak, max(getattr(side, peak), now))
            now += getattr(side.other, up) - getattr(side.other, down)
            setattr(total, peak, max(getattr(total, peak), now))

    def count_pieces(self, pool: Pool, pieces: int, size: int) -> None:
        """Update the counters of free pieces of split segments.

        Their peaks are raised, too.
        """
        side, total = pool.side, self.statistics.total
        if pieces > 0:
            side.pieces_up += pieces
            now = side.pieces_up - side.pieces_down
            side.pieces_peak = max(side.pieces_peak, now)
            now += side.other.pieces_up - side.other.pieces_down
            total.pieces_peak = max(total.pieces_peak, now)
        else:
            side.pieces_down -= pieces
        if size > 0:
            side.split_up += size
            now = side.split_up - side.split_down
            side.split_peak = max(side.split_peak, now)
            now += side.other.split_up - side.other.split_down
            total.split_peak = max(total.split_peak, now)
        else:
            side.split_down -= size
