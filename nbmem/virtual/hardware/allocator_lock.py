"""One card's allocator behind a lock: each change to it is whole, whichever thread makes it.

What finalizers ask for while the allocator is at work in their own thread waits until it is done:
the collector may call them in between any two lines, and a lock does not keep a thread from itself.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nbmem.virtual.hardware.deferred_free import Dying, whole
from nbmem.virtual.paging.accesses import Did

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from nbmem.allocator.caching import CachingAllocator
    from nbmem.virtual.hardware.gpu import VirtualGPU

_AT_WORK = (
    "Cannot allocate on the virtual GPU: its allocator is at work in this thread, and a finalizer "
    "or a signal's handler was called meanwhile. Allocate outside of finalizers and handlers."
)


class LockedAllocator:
    """A context in which this thread alone changes the allocator.

    Attributes:
        lock: That of the machine: what is read of the card in several steps is read under it, too.
        died: What a storage's weak reference calls with itself when the storage dies.
    """

    def __init__(self, gpu: VirtualGPU, allocator: CachingAllocator, lock: threading.RLock) -> None:
        self.lock = lock
        self._gpu = gpu
        self._allocator = allocator
        self._at_work = False
        self._later: deque[Callable[[CachingAllocator], object]] = deque()
        self._dying = Dying()
        self._deaths = self._dying.when  # asked often: a dictionary says in C whether it is empty
        self.died = self._dying.died
        gpu.history.settle = self.settle
        gpu.history.keep_places = self._dying.keep_places

    def __enter__(self) -> CachingAllocator:
        """Wait for the other threads, and free what has died.

        Raises:
            RuntimeError: A finalizer or a signal's handler wants to, in the midst of a change.
        """
        self.lock.acquire()
        if self._deaths or self._later:
            self.settle()
        if self._at_work:
            self.lock.release()
            raise RuntimeError(_AT_WORK)
        self._at_work = True
        return self._allocator

    def __exit__(self, *_exc: object) -> None:
        self._at_work = False
        self.lock.release()

    def settled(self) -> CachingAllocator:
        """The allocator with what has died freed, to be read."""
        with self.lock:
            if self._deaths or self._later:
                self.settle()
            return self._allocator

    def free(self, addr: int) -> None:
        """Free a block."""
        self._dying.add(addr)
        self.settle()

    def later(self, act: Callable[[CachingAllocator], object]) -> None:
        """Change the allocator as soon as it is not at work: now, but for a finalizer's wish."""
        with self.lock:
            self._later.append(act)
            self.settle()

    def settle(self) -> None:
        """Free what has died, unless the allocator is at work: it will once it is done."""
        while (self._deaths or self._later) and self.lock.acquire(blocking=False):
            try:
                if self._at_work:
                    return
                self._settle()
            finally:
                self.lock.release()

    @whole
    def _settle(self) -> None:
        history, touches = self._gpu.history, self._gpu.touches
        self._at_work = True
        try:
            for addr, death in self._dying:
                history.happened = death
                self._allocator.free(addr)
                if touches is not None:
                    touches.note(Did.GIVEN, addr)
            history.happened = None
            while self._later:
                self._later.popleft()(self._allocator)
        finally:
            history.happened = None
            self._at_work = False
