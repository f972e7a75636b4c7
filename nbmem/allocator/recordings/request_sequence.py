"""Replay one run's requests with other sizes, as another batch makes them.

A replay serves the allocations and frees in their order, under a limit. The allocator decides where
they go and what it takes from the driver. Hundreds of values of a variable can be tried so in the
time of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.driver import DownwardDriver
from nbmem.allocator.heap import AllocatorOOM
from nbmem.allocator.rounding import SMALL_LIMIT

if TYPE_CHECKING:
    from nbmem.allocator.settings import AllocatorSettings
    from nbmem.core.arrays import Ints

ALLOCATE, FREE, FREE_LATER, COMPLETE, EMPTY, TAKE = range(6)
"""What an operation does; the rest of its number is that of an allocation, or of a growth."""
SHIFT, _KIND = 3, 7
_OTHER_STREAM = -1
"""Represents any other stream that used a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """A request that ran out of memory, and what was free then.

    Attributes:
        size: Its bytes.
        card_free: Bytes that the process could still take from the card.
        pieces: Sizes of the cached blocks that may serve such requests, the largest first. They lie
            between live tensors, else torch had released them.
    """

    size: int
    card_free: int
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedPeak:
    """The result of a replay, in bytes.

    Attributes:
        allocated: Highest allocated bytes.
        reserved: Highest bytes held from the driver.
        outside: Bytes of the process outside of the allocator, at the end.
        fits: Whether all requests were served, and the process stayed within the limit.
        retries: How often cached memory was released because the card had no more. With none, more
            memory would change nothing.
        refused: The request that ran out of memory; None if all were served.
    """

    allocated: int
    reserved: int
    outside: int
    fits: bool
    retries: int = 0
    refused: RefusedRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSequence:
    """The requests and frees of one run on one card, without addresses.

    Attributes:
        operations: What was done, in order: a kind and the number of an allocation.
        sizes: Requested bytes of each allocation.
        streams: The stream of each allocation.
        pools: The private pool of each allocation; 0 for the default one.
        attempts: For each allocation that the program can do without, as cuDNN can without a
            workspace: a number of its purpose; 0 for others. If one fails, those of the same
            purpose are not made again.
        growths: Bytes by which the process's memory outside of the allocator grew: first its
            context, then libraries' handles.
        release: Version of torch whose allocator rules apply.
        settings: The allocator's settings.
    """

    operations: Ints
    sizes: Ints
    streams: Ints
    pools: Ints
    attempts: Ints
    growths: tuple[int, ...]
    release: str
    settings: AllocatorSettings

    def is_like(self, other: RequestSequence) -> bool:
        """Return whether another run did the same, whatever the sizes."""
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("operations", "streams", "pools", "attempts")
        )

    def replay(
        self, limit: int, sizes: Sequence[int] | None = None, conf: str | None = None
    ) -> ReplayedPeak:
        """Serve the requests again in a process of at most `limit` bytes.

        Args:
            limit: Bytes of the card that the process may have.
            sizes: Other bytes of each allocation; None for those recorded.
            conf: Text of PYTORCH_CUDA_ALLOC_CONF that is added to the settings; None: nothing.

        Raises:
            UsageError: torch rejects the text.
        """
        settings = replace(self.settings, per_process_memory_fraction=None)
        driver = DownwardDriver(limit)
        allocator = CachingAllocator(
            total_bytes=limit,
            release=self.release,
            settings=settings if conf is None else settings.updated(conf, self.release),
            driver=driver,
        )
        refused = None
        try:
            self._serve(allocator, driver, self.sizes.tolist() if sizes is None else sizes)
        except AllocatorOOM as err:
            pool = allocator.small if err.rounded <= SMALL_LIMIT else allocator.large
            pieces = sorted((block.size for block in pool.free_blocks()), reverse=True)
            refused = RefusedRequest(
                size=err.requested, card_free=err.free_bytes, pieces=tuple(pieces)
            )
        stats = allocator.memory_stats()
        outside, reserved = sum(self.growths), stats["reserved_bytes"]["all"]["peak"]
        return ReplayedPeak(
            allocated=stats["allocated_bytes"]["all"]["peak"],
            reserved=reserved,
            outside=outside,
            fits=refused is None and reserved + outside <= limit,
            retries=stats["num_alloc_retries"],
            refused=refused,
        )

    def _serve(
        self, allocator: CachingAllocator, driver: DownwardDriver, sizes: Sequence[int]
    ) -> None:
        streams, pools, attempts = (c.tolist() for c in (self.streams, self.pools, self.attempts))
        failed: set[int] = set()
        addresses = [0] * len(sizes)
        for operation in self.operations.tolist():
            number, kind = operation >> SHIFT, operation & _KIND
            if kind == ALLOCATE:
                size, stream = sizes[number], streams[number]
                if pools[number]:
                    addresses[number] = _from_pool(allocator, pools[number], size, stream)
                elif not attempts[number]:
                    addresses[number] = allocator.malloc(size, stream)
                elif attempts[number] not in failed:
                    addresses[number] = _attempt(allocator, size, stream)
                    if not addresses[number]:
                        failed.add(attempts[number])
            elif kind == FREE:
                allocator.free(addresses[number])
            elif kind == TAKE:
                driver.total_bytes -= self.growths[number]
            else:
                _repeat(allocator, kind, addresses[number])


def _from_pool(allocator: CachingAllocator, pool: int, size: int, stream: int) -> int:
    allocator.begin_pool(pool)
    try:
        return allocator.malloc(size, stream)
    finally:
        allocator.end_pool(pool)


def _attempt(allocator: CachingAllocator, size: int, stream: int) -> int:
    """Return the address of a block, or 0 if there is no memory for it."""
    try:
        return allocator.malloc(size, stream)
    except AllocatorOOM:
        return 0


def _repeat(allocator: CachingAllocator, kind: int, address: int) -> None:
    """Repeat an operation that is rare."""
    if kind == FREE_LATER:
        allocator.record_stream(address, _OTHER_STREAM)
        allocator.free(address)
    elif kind == COMPLETE:
        allocator.complete_streams()
    else:
        allocator.empty_cache()
