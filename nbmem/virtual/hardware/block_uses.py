"""Log when operators used each block of a card, and how much of it.

An operator uses the blocks that it reads or writes. Memory that lives on behind its last use serves
nobody: a variable, a list or a graph keeps it. Of what is used in part the rest served nobody.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from nbmem.core.session.events import Action
from nbmem.core.session.session import PARTLY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.hardware.gpu import VirtualGPU

LEAST_BYTES = 64 << 10
"""Blocks below this size are left out, most of which are numbers and small vectors."""
_COLUMNS = 5


class BlockUseLog:
    """The uses of one card's blocks, from the log's begin to its end.

    Events are counted as a memory history counts them. The columns and dictionaries hold integers,
    which Python's collector does not track.

    Attributes:
        complete: False once a kernel ran whose arguments are not known.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self.complete = True
        self._gpu = gpu
        self._events = 0
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
        self._events += 1
        if action is Action.FREE_REQUESTED and addr in self._last:
            self._add(addr, self._events - 1)
            for column in (self._size, self._made, self._last, self._used):
                del column[addr]
            self._read_back.discard(addr)
        if self._emit is not None:
            self._emit(action, addr, size, stream)

    def _add(self, addr: int, end: int) -> None:
        made, last, used = self._made[addr], self._last[addr], self._used[addr]
        if end > last or 0 < used < PARTLY * self._size[addr]:
            self._found.extend((addr, made, last, used, addr in self._read_back))

    def made(self, addr: int, size: int) -> None:
        """Note that a storage has got a block.

        What a kernel takes for itself is no storage's.
        """
        if size >= LEAST_BYTES:
            self._size[addr], self._used[addr] = size, 0
            self._made[addr] = self._last[addr] = self._events

    def used(self, addr: int, size: int, *, in_backward: bool) -> None:
        """Note that an operator has read or written a block.

        Blocks that are not known are left out: small ones, and those from before the log's begin.

        Args:
            addr: Address of the block.
            size: How many bytes of it the operator used.
            in_backward: Whether it ran in a backward.
        """
        if addr in self._last:
            self._last[addr] = self._events
            self._used[addr] += size
            if in_backward:
                self._read_back.add(addr)

    def end(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Stop, and yield the blocks that lived on behind their last use.

        Those of which operators used a part alone are among them. Each is its address, the numbers
        of events from its allocation and from its last use to the log's end, the bytes that
        operators used, and 1 if one of a backward has, else 0. An allocation is a use of no bytes.
        """
        gpu, end = self._gpu, self._events
        if gpu.block_uses is self:
            gpu.block_uses, gpu.allocator.emit = None, self._emit
        for addr in self._last:
            self._add(addr, end)
        rows = iter(self._found)
        for addr, made, last, used, back in zip(*[rows] * _COLUMNS, strict=True):
            yield addr, end - made, end - last, used, back
