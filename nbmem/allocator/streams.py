"""Deferred frees of blocks that other streams use.

They complete when those streams are done.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.allocator.heap import Heap
    from nbmem.allocator.pool import Block


def defer_free(heap: Heap, block: Block) -> None:
    """Defer the free of a block that other streams use.

    It waits for an event on each of them, or for the capture's end.
    """
    if heap.capturing:
        heap.deferred.append(block)
        heap.refresh()
    else:
        heap.recorded_in_capture.pop(block, None)
        _queue(heap, block)


def _queue(heap: Heap, block: Block) -> None:
    for stream in sorted(block.streams or ()):
        heap.queues.setdefault(stream, deque()).append(block)
        block.waiting += 1
    block.streams = None


def _queue_deferred(heap: Heap) -> None:
    """Queue the blocks that were freed during a capture.

    Streams that were recorded during the capture have finished by its end, and are dropped.
    """
    deferred, heap.deferred = heap.deferred, []
    for block in deferred:
        recorded = heap.recorded_in_capture.pop(block, None)
        if recorded and block.streams:
            block.streams -= recorded
        _queue(heap, block)
        if not block.waiting:
            finish(heap, block)


def finish(heap: Heap, block: Block) -> None:
    """Make a pending block free after its last stream is done."""
    side = block.segment.side
    side.pending -= block.size
    side.pendings -= 1
    heap.make_free(block)


def mark_completed(heap: Heap) -> None:
    """Mark everything queued so far as finished on every stream."""
    for stream, queue in heap.queues.items():
        heap.completed[stream] = len(queue)
    heap.refresh()


def free_completed(heap: Heap) -> None:
    """Free the blocks whose streams have finished, in each stream's order."""
    if heap.capturing:
        return
    _queue_deferred(heap)
    for stream, count in heap.completed.items():
        queue = heap.queues[stream]
        for _ in range(count):
            _step(heap, queue)
    heap.completed.clear()
    heap.refresh()


def synchronize(heap: Heap) -> None:
    """Wait for every stream and free the pending blocks."""
    heap.statistics.num_sync_all_streams += 1
    _queue_deferred(heap)
    for queue in heap.queues.values():
        while queue:
            _step(heap, queue)
    heap.queues.clear()
    heap.completed.clear()
    heap.refresh()


def _step(heap: Heap, queue: deque[Block]) -> None:
    block = queue.popleft()
    block.waiting -= 1
    if not block.waiting:
        finish(heap, block)


def complete_block(heap: Heap, block: Block) -> None:
    """Complete the free of one pending block on every stream.

    Other work of these streams may still be queued. A recording has the time when each block became
    free, not the work of its streams.
    """
    if block in heap.deferred:
        heap.deferred.remove(block)
        block.streams = None
    for stream, queue in heap.queues.items():
        if block in queue:
            if queue.index(block) < heap.completed.get(stream, 0):
                heap.completed[stream] -= 1
            queue.remove(block)
    block.waiting = 0
    finish(heap, block)
