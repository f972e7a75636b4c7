"""Save and restore the state of a CUDA graph's private pool.

Replaying a CUDA graph allocates nothing, so the pool is still as its last capture left it. A
capture that follows a replay needs the blocks that were live then.
(setCheckpointPoolState of
https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbmem.core.errors import UsageError
from nbmem.core.session.events import Action

if TYPE_CHECKING:
    from nbmem.allocator.caching import CachingAllocator
    from nbmem.allocator.pool import Block, PrivatePool


class Piece(NamedTuple):
    """A saved block.

    Attributes:
        addr: Start.
        size: Bytes.
        live: Whether it was allocated.
    """

    addr: int
    size: int
    live: bool


class PoolState(NamedTuple):
    """A saved private pool: its number and each segment's blocks in order."""

    pool: int
    segments: tuple[tuple[Piece, ...], ...]


class RestoreResult(NamedTuple):
    """The addresses that restoring a state freed, and those now allocated."""

    freed: tuple[int, ...]
    made: tuple[int, ...]


def checkpoint(heap: CachingAllocator, number: int) -> PoolState:
    """Save a private pool's state.

    Raises:
        UsageError: There is no such pool.
    """
    owner = heap.private.get(number)
    if owner is None:
        raise UsageError(f"There is no private pool {number}, so it has no state.")
    heads = sorted(_heads(heap, owner), key=lambda block: block.addr)
    return PoolState(number, tuple(tuple(_pieces(heap, head)) for head in heads))


def restore(heap: CachingAllocator, state: PoolState) -> RestoreResult:
    """Restore a private pool to a saved state.

    All of its blocks are freed, and those that were live are allocated again. Every block of a
    segment is allocated in between, so peaks may rise, as they do in torch.
    """
    owner = heap.private[state.pool]
    freed = tuple(a for a, block in heap.live.items() if block.segment.pool.owner is owner)
    for addr in freed:
        heap.free(addr)
    made = [addr for pieces in state.segments for addr in _refill(heap, owner, pieces)]
    return RestoreResult(freed, tuple(made))


def _refill(heap: CachingAllocator, owner: PrivatePool, pieces: tuple[Piece, ...]) -> list[int]:
    rest = _free_at(owner, pieces[0].addr)
    for piece in pieces:
        if rest is None:
            break  # Memory that has gone back to the driver since.
        rest = _claim(heap, rest, piece.size)
    live = []
    for piece in pieces:
        if piece.live:
            live.append(piece.addr)
        else:
            heap.free(piece.addr)
    return live


def _free_at(owner: PrivatePool, addr: int) -> Block | None:
    blocks = (*owner.small.free_blocks(), *owner.large.free_blocks())
    return next((block for block in blocks if block.addr == addr), None)


def _claim(heap: CachingAllocator, block: Block, size: int) -> Block | None:
    """Allocate the first `size` bytes of a free block; return the rest.

    The rest is None if nothing is left.
    """
    segment = block.segment
    split, whole = block.size > size, block.whole
    segment.free.remove(block)
    rest = block if split else None
    if split:
        block = block.cut_front(size, heap.base_for_piece(block))
        segment.free.insert(block.next)  # type: ignore[arg-type]
    if not segment.granule:
        left = block.next.size if split and block.next is not None else 0
        if split and whole:
            heap.count_pieces(segment.pool, 1, left)
        elif not whole:
            heap.count_pieces(segment.pool, 0 if split else -1, -size)
    block.requested = size
    heap.live[block.addr] = block
    heap.count_allocation(segment.side, size, size)
    if heap.emit is not None:
        heap.emit(Action.ALLOC, block.addr, size, segment.stream)
    return rest


def _heads(heap: CachingAllocator, owner: PrivatePool) -> list[Block]:
    """List the first block of each contiguous mapped range."""
    living = [block for block in heap.live.values() if block.segment.pool.owner is owner]
    blocks = (*living, *owner.small.free_blocks(), *owner.large.free_blocks())
    return [block for block in blocks if block.prev is None or not block.prev.mapped]


def _pieces(heap: CachingAllocator, head: Block) -> list[Piece]:
    pieces = []
    block: Block | None = head
    while block is not None and block.mapped:
        pieces.append(Piece(block.addr, block.size, heap.live.get(block.addr) is block))
        block = block.next
    return pieces
