"""Learn the order of equal free blocks that predate a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.allocator.torch_rules import TieOrder

if TYPE_CHECKING:
    from nbmem.allocator.caching import CachingAllocator
    from nbmem.allocator.pool import Block, Segment


class BlockOrder:
    """The order of blocks in segments that an allocator was restored from.

    Since 2.12 torch breaks ties by the order in which segments or blocks were made, which a layout
    does not record. If the recording takes another block of equal size than the model, and both
    are from such segments, the two are swapped in the order.

    Attributes:
        learned: The number of swaps.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        segments = (*allocator.segments.values(), *allocator.ranges.values())
        order = allocator.rules.tie_order
        known = order is TieOrder.ADDRESS
        self._open: set[Segment] = set() if known else set(segments)
        self._by_block = order is TieOrder.BLOCK
        self._allocator = allocator
        self.learned = 0

    def settle(self, got: int, recorded: int) -> bool:
        """Order the block at `recorded` before the one at `got`, if possible.

        The block at `got` was just allocated, and is freed.

        Returns:
            Whether they were swapped; the allocation is then to be made again.
        """
        chosen = self._allocator.live.get(got)
        if chosen is None or chosen.segment not in self._open or chosen.streams:
            return False
        free = chosen.segment.free
        wanted = next((block for block in free.blocks if block.addr == recorded), None)
        if wanted is None or wanted.segment not in self._open:
            return False
        self._allocator.free(got)
        back = next(block for block in free.blocks if block.addr == got)
        if back.size != wanted.size:
            return False
        self._swap(back, wanted)
        self.learned += 1
        return True

    def _swap(self, left: Block, right: Block) -> None:
        free = left.segment.free
        pairs = [(left, right.base), (right, left.base)]
        if not self._by_block:
            # A segment's pieces share its counter; pieces in use get it when they are freed.
            bases = {left.segment: right.base, right.segment: left.base}
            live = self._allocator.live.values()
            blocks = [*live, *free.blocks, *free.unmapped]
            pairs = [(b, bases[b.segment]) for b in blocks if b.segment in bases]
        for block, base in pairs:
            is_free = block.key > 0
            if is_free:
                free.remove(block)
            block.base = base
            if is_free:
                free.insert(block)
