"""The allocator itself: what a tensor's birth and death do to the card's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.allocator import streams
from nbmem.allocator.cached_blocks import release_all
from nbmem.allocator.driver import SimulatedDriver
from nbmem.allocator.fast_path import FastPath
from nbmem.allocator.heap import Scope
from nbmem.allocator.layout import layout_of
from nbmem.allocator.pool import PrivatePool
from nbmem.allocator.settings import AllocatorSettings
from nbmem.allocator.torch_rules import NEWEST, rules_for
from nbmem.core.errors import UsageError
from nbmem.files.torch_snapshot import pool_id

if TYPE_CHECKING:
    from nbmem.allocator.driver import Driver
    from nbmem.allocator.heap import OnEvent
    from nbmem.core.events import Layout


class CachingAllocator(FastPath):
    """Torch's CUDA caching allocator for one device, to the byte.

    Not thread-safe. Not modelled: PYTORCH_NO_CUDA_MEMORY_CACHING, backend:cudaMallocAsync,
    pluggable allocators, and the release of memory that CUDA IPC holds.

    Args:
        total_bytes: Bytes of the card.
        release: The release of torch whose rules hold.
        settings: As text (see PYTORCH_CUDA_ALLOC_CONF) or parsed.
        driver: Where memory comes from; None: a simulated one with `total_bytes`.
        on_event: Called with (action, address, size, stream) as torch's memory history records
            them: requested bytes for allocations and frees, and for OOM the free bytes of the card
            in place of an address.
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

    def record_stream(self, addr: int, stream: int) -> None:
        """Another stream uses a block: once freed, the block waits for it.

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
        """Everything queued on every stream has finished; seen at the next allocation."""
        streams.mark_completed(self)

    def empty_cache(self) -> None:
        """Give every free segment back to the driver.

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
        """Limit the bytes reserved to a part of the card; 1.0 removes the limit.

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
        """What torch's _set_allocator_settings does: takes effect for what comes after.

        Raises:
            UsageError: The text is one that torch refuses.
        """
        self.apply(self.settings.updated(conf, self.rules.release))

    def begin_pool(
        self,
        pool: int,
        *,
        stream: int | None = None,
        capture: bool = False,
        no_split: bool = False,
        shared_on_oom: bool = False,
    ) -> None:
        """Send allocations to private pool `pool` until end_pool.

        Args:
            pool: Its id, made on first use; 0 is the default pool and not allowed.
            stream: Only allocations on this stream; None: all.
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
        self.scopes.append(Scope(owner, stream, capture=capture))
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
        """One user of a private pool is gone; after the last, its free memory can go back.

        Raises:
            UsageError: There is no such pool, or nobody uses it.
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
        """The nested counters that torch._C._cuda_memoryStats(device) returns."""
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
        """Every segment and block now."""
        return layout_of(self)

    def block_bytes(self, addr: int) -> int:
        """Bytes of the allocated block that begins at an address.

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
