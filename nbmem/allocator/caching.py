"""Simulation of torch's caching allocator: allocation and free of blocks.

Python spends its time on calls and attributes, and `malloc` and `free` run for every tensor. So the
plain case is written out in them, and peaks are compared by hand (`max` is a call). Blocks that
merge away are used again for later splits. Every other case is a function of its own module.
"""
# ruff: noqa: PLR1730

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from nbmem.allocator import cache_miss, streams
from nbmem.allocator.block_search import find
from nbmem.allocator.cached_blocks import release_all
from nbmem.allocator.driver import Driver, SimulatedDriver
from nbmem.allocator.heap import AllocatorOOM, Heap, Scope
from nbmem.allocator.layout import layout_of
from nbmem.allocator.pool import SIZE_SHIFT, Block, Pool, PrivatePool
from nbmem.allocator.rounding import MIN_BLOCK, SMALL_LIMIT, TOO_LARGE, round_size
from nbmem.allocator.settings import AllocatorSettings
from nbmem.allocator.torch_rules import NEWEST, rules_for
from nbmem.core.errors import UsageError
from nbmem.core.files.torch_snapshot import pool_id
from nbmem.core.session.events import Action, Layout

if TYPE_CHECKING:
    from nbmem.allocator.heap import OnEvent

_ALLOC = Action.ALLOC
_FREE_REQUESTED = Action.FREE_REQUESTED
_FREE_COMPLETED = Action.FREE_COMPLETED


class CachingAllocator(Heap):
    """Torch's CUDA caching allocator for one device, exact to the byte.

    Not thread-safe. Not modelled: PYTORCH_NO_CUDA_MEMORY_CACHING, backend:cudaMallocAsync,
    pluggable allocators, and the release of memory that CUDA IPC holds.

    Args:
        total_bytes: Bytes of the card.
        release: The release of torch whose rules apply.
        settings: As text (see PYTORCH_CUDA_ALLOC_CONF) or parsed.
        driver: The source of memory; None: a simulated driver with `total_bytes`.
        on_event: Called with (action, address, size, stream), as torch's memory history records
            them. For allocations and frees `size` is the requested bytes. For OOM the address is
            replaced by the free bytes of the card.
    """

    def __init__(
        self,
        *,
        total_bytes: int,
        release: str = NEWEST,
        settings: AllocatorSettings | str = "",
        driver: Driver | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        if isinstance(settings, str):
            settings = AllocatorSettings.parse(settings, release)
        super().__init__(
            total_bytes=total_bytes,
            rules=rules_for(release),
            settings=settings,
            driver=SimulatedDriver(total_bytes) if driver is None else driver,
            on_event=on_event,
        )
        if settings.per_process_memory_fraction is not None:
            self.set_memory_fraction(settings.per_process_memory_fraction)

    def malloc(self, size: int, stream: int = 0) -> int:  # noqa: C901, PLR0912, PLR0915 - see module
        """Allocate a block and return its address, or 0 for 0 bytes.

        Raises:
            AllocatorOOM: No memory is left.
        """
        if size < MIN_BLOCK:
            if size <= 0:
                return self._malloc_nothing(size)
            rounded = MIN_BLOCK
        elif self._divisions is None:
            rounded = (size + 511) & -512
        else:
            rounded = round_size(size, self._divisions)
        if self._retire_wanted:
            streams.free_completed(self)
        pool = self.small if rounded <= SMALL_LIMIT else self.large
        if self.scopes:
            pool = self._scoped(pool, stream)
        free = pool.lists.get(stream)
        block: Block | None = None
        if self._careful_search:
            block = find(self, pool, stream, rounded)
        elif free is not None:
            keys = free.keys
            at = bisect_left(keys, rounded << SIZE_SHIFT)
            if at < len(keys):
                del keys[at]
                block = free.blocks.pop(at)
                block.key = 0
        if block is None:
            if rounded >= TOO_LARGE:
                raise self._too_large(size, rounded)
            block = cache_miss.allocate_block(self, pool, stream, rounded, size)
            pool = block.segment.pool  # it may come from a private pool
        segment = block.segment
        addr = block.addr
        side = pool.side
        rest = block.size - rounded
        before = block.prev
        if rest >= pool.least_rest and rounded < pool.split_below:
            spare = self._spare
            if spare:
                front = spare.pop()
                front.addr = addr
                front.size = rounded
                front.segment = segment
                front.base = base = block.base
            else:
                base = block.base
                front = Block(addr, rounded, segment, base)
            if self._counts_blocks:
                front.base = self.new_base()
            front.prev = before
            front.next = block
            block.prev = front
            block.addr = after = addr + rounded
            block.size = rest
            block.age_from = pool.searches
            block.key = key = (rest << SIZE_SHIFT) + base + after
            free = segment.free
            keys = free.keys
            at = bisect_left(keys, key)
            keys.insert(at, key)
            free.blocks.insert(at, block)
            if before is not None:
                before.next = front
                if not segment.granule:
                    side.split_down += rounded
            elif not segment.granule:
                if block.next is not None:
                    side.split_down += rounded
                else:
                    self.count_pieces(pool, 1, rest)
            block = front
        else:
            rounded = block.size
            if (before is not None or block.next is not None) and not segment.granule:
                side.split_down += rounded
                side.pieces_down += 1
        block.requested = size
        self.live[addr] = block
        # Counters: sums go up, peaks follow.
        side.bytes_up = used = side.bytes_up + rounded
        side.count_up = count = side.count_up + 1
        side.requested_up = requested_bytes = side.requested_up + size
        used -= side.bytes_down
        count -= side.count_down
        requested_bytes -= side.requested_down
        other = side.other
        total = self._total
        if used > side.bytes_peak:
            side.bytes_peak = used
        used += other.bytes_up - other.bytes_down
        if used > total.bytes_peak:
            total.bytes_peak = used
        if count > side.count_peak:
            side.count_peak = count
        count += other.count_up - other.count_down
        if count > total.count_peak:
            total.count_peak = count
        if requested_bytes > side.requested_peak:
            side.requested_peak = requested_bytes
        requested_bytes += other.requested_up - other.requested_down
        if requested_bytes > total.requested_peak:
            total.requested_peak = requested_bytes
        if self._watch:
            self._watch_allocation(block)
        if self.emit is not None:
            self.emit(_ALLOC, addr, size, stream)
        return addr

    def free(self, addr: int) -> None:  # noqa: C901, PLR0912, PLR0915 - see module
        """Free a block; it is reusable at once unless another stream uses it.

        Raises:
            UsageError: No allocated block begins at this address.
        """
        block = self.live.pop(addr, None)
        if block is None:
            if addr == 0:
                return
            raise UsageError(f"No allocated block begins at address {addr:#x}.")
        size = block.size
        segment = block.segment
        side = segment.side
        side.bytes_down += size
        side.count_down += 1
        emit = self.emit
        if emit is not None:
            emit(_FREE_REQUESTED, addr, block.requested, segment.stream)
        if self._watch:
            self._watch_free(block)
        if block.streams:
            self._defer_free(block)
            return
        if emit is not None:
            emit(_FREE_COMPLETED, addr, block.requested, segment.stream)
        # The same as settle(), inline.
        side.requested_down += block.requested
        free = segment.free
        keys = free.keys
        blocks = free.blocks
        merged = 0
        grown = size
        below = block.prev
        if below is not None and below.key:
            at = bisect_left(keys, below.key)
            del keys[at]
            del blocks[at]
            below.key = 0
            self._spare.append(below)
            merged = 1
            grown += below.size
            block.addr = addr = below.addr
            below = block.prev = below.prev
            if below is not None:
                below.next = block
        above = block.next
        if above is not None and above.key:
            at = bisect_left(keys, above.key)
            del keys[at]
            del blocks[at]
            above.key = 0
            self._spare.append(above)
            merged += 1
            grown += above.size
            above = block.next = above.next
            if above is not None:
                above.prev = block
        block.size = grown
        block.age_from = segment.pool.searches
        block.key = key = (grown << SIZE_SHIFT) + block.base + addr
        at = bisect_left(keys, key)
        keys.insert(at, key)
        blocks.insert(at, block)
        if segment.granule:
            return
        if below is None and above is None:
            side.split_down += grown - size
            side.pieces_down += merged
            return
        other = side.other
        total = self._total
        side.split_up = now = side.split_up + size
        now -= side.split_down
        if now > side.split_peak:
            side.split_peak = now
        now += other.split_up - other.split_down
        if now > total.split_peak:
            total.split_peak = now
        if merged == 1:
            return
        if merged:
            side.pieces_down += 1
            return
        side.pieces_up = now = side.pieces_up + 1
        now -= side.pieces_down
        if now > side.pieces_peak:
            side.pieces_peak = now
        now += other.pieces_up - other.pieces_down
        if now > total.pieces_peak:
            total.pieces_peak = now

    def record_stream(self, addr: int, stream: int) -> None:
        """Record that another stream uses a block.

        Once freed, the block waits for that stream.

        Raises:
            UsageError: No allocated block begins at this address.
        """
        block = self.live.get(addr)
        if block is None:
            raise UsageError(f"No allocated block begins at address {addr:#x}.")
        if stream == block.segment.stream:
            return
        if block.streams is None:
            block.streams = set()
        block.streams.add(stream)
        if self.capturing:
            self.recorded_in_capture.setdefault(block, set()).add(stream)

    def complete_streams(self) -> None:
        """Mark all work queued on every stream as finished.

        The next allocation takes notice of it.
        """
        streams.mark_completed(self)

    def empty_cache(self) -> None:
        """Release every free segment to the driver.

        Raises:
            UsageError: A pool scope is active and this release forbids it.
        """
        if self.scopes and not self.rules.empty_cache_in_scope:
            raise UsageError(
                "torch before 2.8 stops with an assertion when empty_cache() is called inside a "
                "pool scope. Call it outside."
            )
        release_all(self)

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the reserved bytes to a fraction of the card.

        The fraction 1.0 removes the limit.

        Raises:
            UsageError: The fraction is not between 0 and 1.
        """
        if not 0.0 <= fraction <= 1.0:
            raise UsageError(f"A memory fraction lies between 0 and 1; got {fraction}.")
        wanted = fraction * self.total_bytes
        limit = round(wanted) if self.rules.rounded_limit else int(wanted)
        self.fraction = fraction
        self.limit = None if fraction == 1.0 else limit
        self.refresh()

    def set_settings(self, conf: str) -> None:
        """Apply settings as torch's _set_allocator_settings does.

        They take effect for what comes after.

        Raises:
            UsageError: The text is one that torch refuses.
        """
        self.apply(self.settings.updated(conf, self.rules.release))

    def begin_pool(  # noqa: PLR0913 - each by name
        self,
        pool: int,
        *,
        streams: Collection[int] | None = None,
        thread: int | None = None,
        capture: bool = False,
        no_split: bool = False,
        shared_on_oom: bool = False,
    ) -> None:
        """Direct allocations to private pool `pool` until end_pool.

        Args:
            pool: Its id, made on first use; 0 is the default pool and not allowed.
            streams: Only allocations on one of these, which may become more; None: all.
            thread: Only allocations by this thread; None: all.
            capture: A CUDA graph is being captured.
            no_split: The pool never splits a block.
            shared_on_oom: Others may use its free blocks rather than run out of memory.

        Raises:
            UsageError: The pool is 0.
        """
        if pool == 0:
            raise UsageError("Pool 0 is the default one; give a private pool another number.")
        owner = self.private.get(pool)
        if owner is None:
            owner = PrivatePool(pool, self.statistics.small, self.statistics.large)
            self.private[pool] = owner
        self.freeable.pop(pool, None)
        owner.users += 1
        owner.no_split = owner.no_split or no_split
        owner.shared_on_oom = owner.shared_on_oom or shared_on_oom
        self.scopes.append(Scope(owner, streams, thread, capture=capture))
        self.apply(self.settings)

    def end_pool(self, pool: int) -> None:
        """End the latest begin_pool of this pool.

        Raises:
            UsageError: It is not active.
        """
        for at in reversed(range(len(self.scopes))):
            if self.scopes[at].pool.number == pool:
                del self.scopes[at]
                self.refresh()
                return
        raise UsageError(f"Pool {pool} is not active.")

    def release_pool(self, pool: int) -> None:
        """Remove one user of a private pool.

        After the last one, the pool's free memory can be released to the driver.

        Raises:
            UsageError: There is no such pool, or it has no user.
        """
        owner = self.private.get(pool)
        if owner is None or not owner.users:
            raise UsageError(f"Pool {pool} is not in use.")
        owner.users -= 1
        if not owner.users:
            self.freeable[pool] = owner
            if self.rules.rounded_limit:
                owner.no_split = False
                self.apply(self.settings)

    def memory_stats(self) -> dict[str, Any]:
        """Return the nested counters of torch._C._cuda_memoryStats(device)."""
        found = self.statistics.to_dict(
            max_split_size=self.settings.max_split_size, rejects=self.rules.rejects
        )
        if self.rules.counts_private_pools:
            found["reserved_bytes_by_private_pools"] = {
                pool_id(number): owner.reserved.to_dict() for number, owner in self.private.items()
            }
        return found

    def reset_peak_stats(self) -> None:
        """Set every peak to the current value."""
        self.statistics.reset_peaks()
        self.refresh()

    def reset_accumulated_stats(self) -> None:
        """Set the sums and the scalar counters to 0."""
        self.statistics.reset_accumulated()

    def layout(self) -> Layout:
        """Return every segment and block at this moment."""
        return layout_of(self)

    def block_bytes(self, addr: int) -> int:
        """Return the bytes of the allocated block at an address.

        Raises:
            UsageError: None does.
        """
        block = self.live.get(addr)
        if block is None:
            raise UsageError(f"No allocated block begins at address {addr:#x}.")
        return block.size

    @property
    def allocated(self) -> int:
        """Bytes in allocated blocks."""
        return self.statistics.value("bytes_up", "bytes_down")

    @property
    def reserved(self) -> int:
        """Bytes held from the driver."""
        return self.held

    @property
    def active(self) -> int:
        """Bytes in allocated blocks and in those that wait for another stream."""
        return self.statistics.value("bytes_up", "active_down")

    @property
    def requested(self) -> int:
        """Bytes asked for by the active blocks."""
        return self.statistics.value("requested_up", "requested_down")

    def _malloc_nothing(self, size: int) -> int:
        if size < 0:
            raise UsageError(f"Nobody can allocate {size} bytes.")
        return 0

    def _too_large(self, size: int, rounded: int) -> AllocatorOOM:
        return AllocatorOOM(
            requested=size,
            rounded=rounded,
            segment=rounded,
            free_bytes=self.driver.free_bytes,
            limit=self.limit,
            total_bytes=self.total_bytes,
        )

    def _scoped(self, pool: Pool, stream: int) -> Pool:
        for scope in reversed(self.scopes):
            if scope.takes(stream):
                return scope.pool.small if pool.small else scope.pool.large
        return pool

    def _watch_allocation(self, block: Block) -> None:
        """Update counters that options or several streams require."""
        if self.statistics.pending_seen:
            self.statistics.raise_active_peaks(block.segment.side)
        limit = self.settings.max_split_size
        if limit is not None and block.size >= limit:
            self.statistics.oversize_allocations.add(1)

    def _watch_free(self, block: Block) -> None:
        limit = self.settings.max_split_size
        if limit is not None and block.size >= limit:
            self.statistics.oversize_allocations.remove(1)

    def _defer_free(self, block: Block) -> None:
        """Defer the free of a block that other streams still use."""
        self.statistics.note_pending()
        side = block.segment.side
        side.pending += block.size
        side.pendings += 1
        streams.defer_free(self, block)
        self.refresh()
