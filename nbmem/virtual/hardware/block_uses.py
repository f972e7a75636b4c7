"""Log when operators used each block of a card, and how much of it.

An operator uses the blocks that it reads or writes. Memory that no operator uses for long could be
elsewhere; memory that lives on behind its last use serves nobody.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from nbmem.core.session.events import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.hardware.gpu import VirtualGPU

LEAST_BYTES = 64 << 10
"""Blocks below this size are left out, most of which are numbers and small vectors."""
LEAST_SHARE = 0.005
"""Part of the peak from which a block's time between two uses is logged."""
HIGH = 0.9
"""Part of the peak from which a moment counts as high: a block that is unused there matters."""
PARTLY = 0.25
"""Part of a block below which what operators have read and written of it is told."""
NO_USE = -1
_COLUMNS = 6


class BlockUseLog:
    """The uses of one card's blocks, from the log's begin to its end.

    Events are counted as a memory history counts them. The columns and dictionaries hold integers,
    which Python's collector does not track.

    Attributes:
        complete: False once a kernel ran whose arguments are not known.
        events: The number of events since the log's begin.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self.complete = True
        self.events = 0
        self._gpu = gpu
        self._allocated = self._peak = gpu.allocator.allocated
        self._high = 0
        self._highs, self._levels = array("q"), array("q")
        self._size: dict[int, int] = {}
        self._made: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._read_back: set[int] = set()
        self._found = array("q")
        self._emit = gpu.allocator.emit
        gpu.allocator.emit = self._on_event
        gpu.block_uses = self

    def _on_event(self, action: Action, addr: int, size: int, stream: int) -> None:
        self.events += 1
        if action is Action.ALLOC:
            self._allocated += size
            self._peak = max(self._peak, self._allocated)
            if self._allocated >= HIGH * self._peak:
                self._high = self.events
                self._highs.append(self.events)
                self._levels.append(self._allocated)
        elif action is Action.FREE_REQUESTED:
            self._allocated -= size
            if addr in self._last:
                self._end_block(addr, self.events - 1)
                for columns in (self._size, self._made, self._last, self._used):
                    del columns[addr]
                self._read_back.discard(addr)
        if self._emit is not None:
            self._emit(action, addr, size, stream)

    def _end_block(self, addr: int, end: int) -> None:
        if end > self._last[addr] or 0 < self._used[addr] < PARTLY * self._size[addr]:
            self._add(addr, NO_USE)

    def _add(self, addr: int, following: int) -> None:
        row = addr, self._made[addr], self._last[addr], following, self._used[addr]
        self._found.extend((*row, addr in self._read_back))

    def made(self, addr: int, size: int) -> None:
        """Note that a storage has got a block.

        What a kernel takes for itself is no storage's.
        """
        if size >= LEAST_BYTES:
            self._size[addr], self._used[addr] = size, 0
            self._made[addr] = self._last[addr] = self.events

    def used(self, addr: int, size: int, *, begin: int, in_backward: bool) -> None:
        """Note that an operator has read or written a block.

        Blocks that are not known are left out: small ones, and those from before the log's begin.

        Args:
            addr: Address of the block.
            size: How many bytes of it the operator used.
            begin: The number of events when the operator began.
            in_backward: Whether it ran in a backward.
        """
        if addr not in self._last:
            return
        if in_backward:
            self._read_back.add(addr)
        if self._last[addr] < self._high <= begin and (
            self._size[addr] >= LEAST_SHARE * self._peak
        ):
            self._add(addr, begin)
        self._last[addr] = self.events
        self._used[addr] += size

    def end(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Stop, and yield the times in which blocks lived unused.

        Times between two uses are left out if little was allocated then. Also yield blocks of which
        operators used a part alone.

        Each is the block's address, the numbers of events from its allocation, from its use and
        from the next one to the log's end (`NO_USE`: none followed), the bytes that operators had
        used by then, and 1 if one of a backward has, else 0. An allocation is a use of no bytes.
        """
        gpu, end = self._gpu, self.events
        if gpu.block_uses is self:
            gpu.block_uses, gpu.allocator.emit = None, self._emit
        for addr in self._last:
            self._end_block(addr, end)
        levels = zip(self._highs, self._levels, strict=True)
        highs = [event for event, level in levels if level >= HIGH * self._peak]
        rows = iter(self._found)
        for addr, made, last, following, used, back in zip(*[rows] * _COLUMNS, strict=True):
            if following == NO_USE:
                yield addr, end - made, end - last, NO_USE, used, back
            elif bisect_right(highs, following) > bisect_right(highs, last):
                yield addr, end - made, end - last, end - following, used, back
