"""Blocks, their segments, and the ordered lists of free blocks."""

from __future__ import annotations

from bisect import bisect_left

from nbmem.allocator.rounding import MIN_BLOCK, SMALL_LIMIT
from nbmem.allocator.statistics import CounterByPool, PoolCounters

SIZE_SHIFT = 96
"""A free block's key is one integer: its size above bit 96, a counter above bit 64, its address.

One integer compares faster than a tuple, and has the order of all three. The counter is 0 up to
2.11, new for each block in 2.12, and one for each segment since 2.13.
"""
COUNTER_SHIFT = 64
NEVER = 1 << 62
"""A remainder that no block leaves: the pool does not split."""


class Block:
    """A piece of a segment: allocated, pending, free, or not mapped.

    Only blocks of expandable segments can be unmapped.

    Attributes:
        addr: Start.
        size: Bytes.
        requested: Bytes of the request; stale while free.
        prev: Neighbour below in the same segment, None at its start.
        next: Neighbour above, None at its end.
        segment: The segment that it is a piece of.
        key: Its sort key among the free blocks; 0 unless it is free and mapped.
        mapped: Whether memory is behind it; always, unless its segment is a virtual range.
        base: The counter's part of the key.
        age_from: The pool's search count when it became free.
        streams: Other streams that use it; None if none.
        waiting: Events of other streams that must complete before it is free.
    """

    __slots__ = (
        "addr",
        "age_from",
        "base",
        "key",
        "mapped",
        "next",
        "prev",
        "requested",
        "segment",
        "size",
        "streams",
        "waiting",
    )

    def __init__(self, addr: int, size: int, segment: Segment, base: int) -> None:
        self.addr = addr
        self.size = size
        self.segment = segment
        self.base = base
        self.requested = 0
        self.key = 0
        self.mapped = True
        self.age_from = 0
        self.waiting = 0
        self.prev: Block | None = None
        self.next: Block | None = None
        self.streams: set[int] | None = None

    @property
    def whole(self) -> bool:
        """True if it has no neighbours, which torch calls not split."""
        return self.prev is None and self.next is None

    def take_in(self, neighbour: Block) -> None:
        """Merge an adjacent block into this one."""
        if neighbour is self.prev:
            self.addr = neighbour.addr
            self.prev = neighbour.prev
            if self.prev is not None:
                self.prev.next = self
        else:
            self.next = neighbour.next
            if self.next is not None:
                self.next.prev = self
        self.size += neighbour.size

    def cut_front(self, size: int, base: int) -> Block:
        """Split off the first `size` bytes as a new block."""
        front = Block(self.addr, size, self.segment, base)
        front.prev, front.next = self.prev, self
        if self.prev is not None:
            self.prev.next = front
        self.prev = front
        self.addr += size
        self.size -= size
        return front

    def cut_tail(self, size: int, base: int) -> Block:
        """Split off the last `size` bytes as a new block."""
        tail = Block(self.addr + self.size - size, size, self.segment, base)
        tail.prev, tail.next = self, self.next
        if self.next is not None:
            self.next.prev = tail
        self.next = tail
        self.size -= size
        return tail


class FreeList:
    """Free blocks of one stream in one pool, in torch's order.

    The mapped and the unmapped ones have a list each.

    Attributes:
        keys: Keys of the free blocks, ascending.
        blocks: The blocks, in the order of their keys.
        unmapped: Blocks without memory behind them, by address.
    """

    __slots__ = ("blocks", "keys", "unmapped")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []

    def insert(self, block: Block) -> None:
        """Insert a block that has become free."""
        key = (block.size << SIZE_SHIFT) + block.base + block.addr
        at = bisect_left(self.keys, key)
        block.key = key
        self.keys.insert(at, key)
        self.blocks.insert(at, block)

    def remove(self, block: Block) -> None:
        """Remove a block that is no longer free or that is merged away."""
        at = bisect_left(self.keys, block.key)
        del self.keys[at], self.blocks[at]
        block.key = 0

    def insert_unmapped(self, block: Block) -> None:
        """Insert a block that was unmapped or never mapped."""
        at = bisect_left(self.unmapped, block.addr, key=_address)
        self.unmapped.insert(at, block)

    def remove_unmapped(self, block: Block) -> None:
        """Remove a block that is mapped or merged away."""
        del self.unmapped[bisect_left(self.unmapped, block.addr, key=_address)]


def _address(block: Block) -> int:
    return block.addr


class Segment:
    """Memory of one cudaMalloc, or a virtual range mapped on demand.

    Attributes:
        addr: Start.
        size: Bytes (of address space, for a virtual range).
        pool: The pool that owns it.
        stream: The stream that owns it.
        free: The pool's list for that stream.
        side: The counters of its pool's kind.
        granule: Page size in bytes of a virtual range; 0 for a cudaMalloc segment.
    """

    __slots__ = ("addr", "free", "granule", "pool", "side", "size", "stream")

    def __init__(self, addr: int, size: int, pool: Pool, stream: int, *, granule: int = 0) -> None:
        self.addr = addr
        self.size = size
        self.pool = pool
        self.stream = stream
        self.free = pool.list_for(stream)
        self.side = pool.side
        self.granule = granule


class Pool:
    """Small or large blocks of the default allocator or of one private pool.

    Attributes:
        small: Whether it serves rounded sizes up to 1 MiB.
        side: The counters that it moves.
        owner: The private pool that it belongs to; None for the default one.
        lists: Free blocks by stream.
        least_rest: A block is split if at least this many bytes remain.
        split_below: Only requests below this many bytes split a block.
        searches: How often it was searched, counted while garbage collection is on.
    """

    __slots__ = ("least_rest", "lists", "owner", "searches", "side", "small", "split_below")

    def __init__(
        self, side: PoolCounters, *, small: bool, owner: PrivatePool | None = None
    ) -> None:
        self.small = small
        self.side = side
        self.owner = owner
        self.lists: dict[int, FreeList] = {}
        self.searches = 0
        self.least_rest = MIN_BLOCK if small else SMALL_LIMIT + 1
        self.split_below = NEVER

    def list_for(self, stream: int) -> FreeList:
        """Return the free list of a stream, created if necessary."""
        found = self.lists.get(stream)
        if found is None:
            found = self.lists[stream] = FreeList()
        return found

    def free_blocks(self) -> list[Block]:
        """List the free mapped blocks in torch's order: by stream, then by key."""
        return [block for stream in sorted(self.lists) for block in self.lists[stream].blocks]


class PrivatePool:
    """A pool for a CUDA graph or a MemPool.

    Attributes:
        number: Its id, as the caller chose it.
        small: Its blocks for small requests.
        large: Its blocks for large requests.
        users: How often it was begun minus how often it was released.
        driver_calls: Segments it holds, counted as torch counts them: decides when it vanishes.
        shared_on_oom: Whether others may use its free blocks rather than run out of memory.
        no_split: Whether its blocks are never split.
        reserved: Bytes it holds from the driver.
    """

    __slots__ = (
        "driver_calls",
        "large",
        "no_split",
        "number",
        "reserved",
        "shared_on_oom",
        "small",
        "users",
    )

    def __init__(self, number: int, small_side: PoolCounters, large_side: PoolCounters) -> None:
        self.number = number
        self.small = Pool(small_side, small=True, owner=self)
        self.large = Pool(large_side, small=False, owner=self)
        self.users = 0
        self.driver_calls = 0
        self.shared_on_oom = False
        self.no_split = False
        self.reserved = CounterByPool()
