"""A lock around one card's allocator that makes each change atomic.

The garbage collector may call a finalizer between any two lines, and a reentrant lock does not
exclude its own thread. So changes that finalizers request during another change are deferred.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmem.virtual.hardware.deferred_free import DeferredFrees, defer_interrupt
from nbmem.virtual.paging.accesses import AccessKind

if TYPE_CHECKING:
    import threading

    from nbmem.allocator.caching import CachingAllocator
    from nbmem.virtual.hardware.gpu import VirtualGPU

_AT_WORK = (
    "Cannot allocate on the virtual GPU: its allocator is at work in this thread, and a finalizer "
    "or a signal's handler was called meanwhile. Allocate outside of finalizers and handlers."
)


class LockedAllocator:
    """A context manager in which this thread alone changes the allocator.

    Attributes:
        lock: The machine's lock. Reads of the card in several steps hold it, too.
        on_storage_freed: The callback of a storage's weak reference, called with the reference.
    """

    def __init__(self, gpu: VirtualGPU, allocator: CachingAllocator, lock: threading.RLock) -> None:
        self.lock = lock
        self._gpu = gpu
        self._allocator = allocator
        self._at_work = False
        self._later: deque[Callable[[CachingAllocator], object]] = deque()
        self._dying = DeferredFrees()
        self._deaths = self._dying.when  # tested often: a dictionary's truth value is computed in C
        self.on_storage_freed = self._dying.on_storage_freed
        gpu.history.flush = self.flush
        gpu.history.record_stacks = self._dying.record_stacks

    def __enter__(self) -> CachingAllocator:
        """Wait for other threads, and process the deferred frees.

        Raises:
            RuntimeError: A finalizer or signal handler enters during a change by this thread.
        """
        self.lock.acquire()
        if self._deaths or self._later:
            self.flush()
        if self._at_work:
            self.lock.release()
            raise RuntimeError(_AT_WORK)
        self._at_work = True
        return self._allocator

    def __exit__(self, *_exc: object) -> None:
        self._at_work = False
        self.lock.release()

    def flushed(self) -> CachingAllocator:
        """Return the allocator, for reading, after the deferred frees."""
        with self.lock:
            if self._deaths or self._later:
                self.flush()
            return self._allocator

    def free(self, addr: int) -> None:
        """Free a block, or defer it while the allocator is busy."""
        self._dying.add(addr)
        self.flush()

    def schedule(self, act: Callable[[CachingAllocator], object]) -> None:
        """Change the allocator now, or as soon as it is no longer busy.

        Only a call from a finalizer or a signal handler has to wait.
        """
        with self.lock:
            self._later.append(act)
            self.flush()

    def flush(self) -> None:
        """Process deferred frees and changes, unless the allocator is busy.

        In that case they follow with the next use of the allocator.
        """
        while (self._deaths or self._later) and self.lock.acquire(blocking=False):
            try:
                if self._at_work:
                    return
                self._settle()
            finally:
                self.lock.release()

    @defer_interrupt
    def _settle(self) -> None:
        history, touches = self._gpu.history, self._gpu.access_log
        self._at_work = True
        try:
            for addr, death in self._dying:
                history.deferred_free = death
                self._allocator.free(addr)
                if touches is not None:
                    touches.note(AccessKind.FREED, addr)
            history.deferred_free = None
            while self._later:
                self._later.popleft()(self._allocator)
        finally:
            history.deferred_free = None
            self._at_work = False
