"""Ctrl-C while something must not be cut in two: held back, and delivered when that is done."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Interrupts:
    """What came while interrupts were held back.

    Attributes:
        came: Whether one came.
    """

    def __init__(self) -> None:
        self.came = False

    def take(self, *_signal_and_frame: Any) -> None:
        """Note one; what Python calls for a signal."""
        self.came = True


class Delivery:
    """Interrupts the main thread when it is let go of: no Python code runs between.

    Kept in a variable of a function that is about to end, it delivers the interrupt in the frame of
    the caller, and no frame of nbmem's is in the traceback.
    """

    __del__ = staticmethod(_thread.interrupt_main)


def can_deliver() -> bool:
    """Whether an interrupt of this thread can be delivered once more."""
    main = threading.current_thread() is threading.main_thread()
    return main and callable(signal.getsignal(signal.SIGINT))


@contextlib.contextmanager
def held_back() -> Iterator[Interrupts]:
    """Hold interrupts back; whoever asks for it sees to it that they are delivered.

    Only the main thread is ever interrupted, so elsewhere this does nothing.
    """
    held = Interrupts()
    if not can_deliver():
        yield held
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, held.take)
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
