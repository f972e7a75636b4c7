"""Optimal paging (Belady): evict what is next used last; freed is free.

This is what prefetching with knowledge of the program would move. Contents are dropped when a
tensor is freed. Pages that the host has unchanged are not copied back.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from nbmem.virtual.paging.accesses import PAGE, AccessKind, AccessLog, TransferredBytes, last_step

Use = tuple[int, int, int, int]
"""A use of a piece of a tensor: an `AccessKind`, the tensor's number, which piece, its bytes."""
_NEVER = 1 << 62
PIECE = 8 * PAGE
"""Bytes that are treated as one: which pieces are evicted decides transfers of that size."""


def paged(touches: AccessLog, room: int) -> TransferredBytes:
    """Return the bytes that one step moves.

    Args:
        touches: The log of the program's accesses.
        room: Bytes of the card that are available to it.
    """
    return _Card(list(_pieces(touches)), room).run()


def _pieces(touches: AccessLog) -> Iterator[Use]:
    """Yield the uses of each tensor's pieces.

    Uses are distinguished by tensors and not by addresses: a new tensor does not inherit a
    freed one's past.
    """
    living: dict[int, tuple[int, int]] = {}  # by block: number, bytes
    number = 0
    rows = zip(touches.kind, touches.block, touches.addr, touches.size, strict=True)
    for did, block, addr, size in rows:
        if did == AccessKind.STEP:
            yield did, 0, 0, 0
            continue
        if did == AccessKind.ALLOCATED:
            number += 1
            living[block] = number, size
        tensor, whole = living.get(block, (0, 0))
        if did == AccessKind.FREED:
            living.pop(block, None)
        first = (addr - block) // PIECE
        end = whole if did in _WHOLE else min(whole, addr - block + size)
        for piece in range(first, -(-end // PIECE)):
            yield did, tensor, piece, min(PIECE, whole - piece * PIECE)


_WHOLE = frozenset((AccessKind.ALLOCATED, AccessKind.FREED))


class _Card:
    """A card of which each piece's next use is known."""

    def __init__(self, uses: list[Use], room: int) -> None:
        self._uses = uses
        self._room = room
        self._here: dict[tuple[int, int], tuple[int, int]] = {}  # bytes, next use
        self._there: set[tuple[int, int]] = set()  # the host has its contents
        self._next = self._following()
        self._last: list[tuple[int, tuple[int, int]]] = []  # a heap: the next used last on top
        self._held = self._came = self._left = 0

    def _following(self) -> list[int]:
        """Return, for each use, the index of its piece's next use."""
        seen: dict[tuple[int, int], int] = {}
        found = [_NEVER] * len(self._uses)
        for at in range(len(self._uses) - 1, -1, -1):
            did, number, piece, _ = self._uses[at]
            if did != AccessKind.STEP:
                found[at] = seen.get((number, piece), _NEVER)
                seen[number, piece] = _NEVER if did == AccessKind.FREED else at
        return found

    def run(self) -> TransferredBytes:
        """Replay all uses and return what the last step moved."""
        marks = []
        for at, (did, number, piece, size) in enumerate(self._uses):
            key = number, piece
            if did == AccessKind.STEP:
                marks.append(TransferredBytes(self._came, self._left))
            elif did == AccessKind.FREED:
                self._held -= self._here.pop(key, (0, 0))[0]
                self._there.discard(key)
            else:
                self._use(key, size, self._next[at])
                if did != AccessKind.READ:
                    self._there.discard(key)
        return last_step(marks, TransferredBytes(self._came, self._left))

    def _use(self, key: tuple[int, int], size: int, following: int) -> None:
        before = self._here.pop(key, (0, 0))[0]
        size = max(before, size)
        self._held -= before
        while self._held + size > self._room and self._last:
            self._evict()
        if not before and key in self._there:
            self._came += size
        self._here[key] = size, following
        self._held += size
        heappush(self._last, (-following, key))

    def _evict(self) -> None:
        when, key = heappop(self._last)
        size, following = self._here.get(key, (0, 0))
        if not size or following != -when:
            return  # used or given back since
        del self._here[key]
        self._held -= size
        if key not in self._there:
            self._there.add(key)
            self._left += size
