"""Deferred frees: ledger updates that Ctrl-C cannot interrupt.

A finalizer in Python may be interrupted before its first line. The interpreter then drops the
interrupt, and the block would stay allocated for good. So a freed storage is queued by C code
alone. Its block is freed before the allocator is next used or read.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from torch._C._profiler import CapturedTraceback, gather_traceback

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.interrupts import SignalDelivery

_P = ParamSpec("_P")
_R = TypeVar("_R")


class FreeContext(NamedTuple):
    """The time at which a storage died, and its stack if stacks are recorded.

    `t_ns` is time.time_ns(); `where` is None if no stack is recorded.
    """

    t_ns: int
    where: CapturedTraceback | None


class Freeable(Protocol):
    """A block of card memory whose storage can be freed; hashed by identity.

    Attributes:
        addr: Address on the card, 0 for no bytes.
    """

    addr: int

    def unregister(self) -> None:
        """Remove the block from the table of live blocks."""


class DeferredFrees:
    """Blocks of freed storages that the allocator has not freed yet, in order.

    Attributes:
        when: Each block with the time of its free, and the stack if stacks are recorded.
        on_storage_freed: Queues a block with the time and perhaps the stack, without Python code.
            It is `dict.__getitem__` for a missing key of a dictionary whose default is the clock.
    """

    def __init__(self) -> None:
        self.when: defaultdict[Freeable, int | tuple[Any, ...]] = defaultdict(CLOCK.time_ns)
        self.on_storage_freed: Callable[[Freeable], Any] = self.when.__getitem__

    def record_stacks(self, *, wanted: bool) -> None:
        """Turn recording of the stack at each free on or off."""
        self.when.default_factory = _when_and_where() if wanted else CLOCK.time_ns

    def add(self, addr: int) -> None:
        """Queue the free of a block that has no storage."""
        self.when[_Address(addr)]

    def __iter__(self) -> Iterator[tuple[int, FreeContext]]:
        """Yield and remove each queued address with its time of free.

        Other threads may queue more blocks meanwhile; those are yielded, too.
        """
        while self.when:
            for block in list(self.when):  # one call of C: no thread queues a block during it
                told = self.when.pop(block)
                block.unregister()
                if block.addr:
                    yield (
                        block.addr,
                        FreeContext(told, None) if isinstance(told, int) else FreeContext(*told),
                    )


def _when_and_where() -> Callable[[], Any]:
    """Return a C-only callable that records the time and the stack.

    The callable runs no Python code and holds no frame.
    """
    where = functools.partial(gather_traceback, True, False, False)
    return functools.partial(next, zip(iter(CLOCK.time_ns, None), iter(where, None), strict=False))


class _Address:
    """A block without a storage; each one is its own key."""

    __slots__ = ("addr",)

    def __init__(self, addr: int) -> None:
        self.addr = addr

    def unregister(self) -> None:
        """Do nothing: the block is in no table."""


_arrived: set[int] = set()
"""Signals that arrived during a protected function."""


def _hold(number: int, _frame: object) -> None:
    _arrived.add(number)


_MAIN = threading.main_thread().ident
_ALARM: int | None = getattr(_signal, "SIGALRM", None)
"""The signal of timeouts; None on Windows."""


def defer_interrupt(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function so that Ctrl-C and a timeout wait until it returns.

    The interrupt is raised in the caller's frame. This wrapper costs 1 us.
    `interrupts.hold_signals` does that in 28 us, while making a tensor takes 100 us.
    """

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if threading.get_ident() != _MAIN:
            return function(*args, **kwargs)
        signal = _next_to_hold()
        if signal is None:
            return function(*args, **kwargs)
        before = _signal.getsignal(signal)
        inner = guarded if signal == _ALARM else function
        try:
            _signal.signal(signal, _hold)
            return inner(*args, **kwargs)
        finally:
            try:
                _signal.signal(signal, before)
            finally:  # a handler that raised has kept it from being restored
                if _signal.getsignal(signal) is _hold:
                    _signal.signal(signal, before)
            if signal in _arrived:
                _arrived.discard(signal)
                again = SignalDelivery(signal)  # this frame's end is what it waits for
                if sys.exception() is not None:  # its traceback may hold this frame for long
                    del again

    return guarded


def _next_to_hold() -> int | None:
    """Return the signal to hold next: that of timeouts, or of Ctrl-C.

    None if neither is left. Each is held by a call of its own, timeouts by the outer one: no
    handler runs while Ctrl-C's is restored.
    """
    for signal in (_ALARM, _signal.SIGINT):
        if signal is not None:
            handler = _signal.getsignal(signal)
            if handler is not _hold and callable(handler):
                return signal
    return None
