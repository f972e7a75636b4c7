"""Hold back Ctrl-C and other signals during critical sections.

An exception that a signal's handler raises is the user's, wherever it is raised. The handler's code
is in its traceback, so code that catches everything checks here whether it may suppress it.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import threading
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, Self

from nbmem.core.runtime.exceptions import is_raised, traceback_of


class HeldSignals:
    """Signals that arrived while they were held back.

    Attributes:
        came: Whether an interrupt (Ctrl-C) arrived.
        others: The other signals that arrived, in their order, each once.
    """

    def __init__(self) -> None:
        self.came = False
        self.others: dict[int, None] = {}

    @property
    def waiting(self) -> bool:
        """Return whether a signal arrived and waits to be delivered."""
        return self.came or bool(self.others)

    def take(self, number: int, _frame: Any) -> None:
        """Record a signal; Python calls this as the signal handler."""
        if number == signal.SIGINT:
            self.came = True
        else:
            self.others[number] = None


class SignalDelivery(functools.partial):  # type: ignore[type-arg]
    """Raises a signal again when it is freed, with no Python code between.

    In a variable of a function that is about to end, it causes the signal's handler to be called in
    the caller's frame. The traceback then contains no frame of nbmem's.
    """

    def __new__(cls, number: int = signal.SIGINT) -> Self:
        """Create a delivery of this signal."""
        return super().__new__(cls, _thread.interrupt_main, number)

    __del__ = functools.partial.__call__


def can_deliver(number: int = signal.SIGINT) -> bool:
    """Return whether a signal of this thread can be raised again."""
    main = threading.current_thread() is threading.main_thread()
    return main and callable(signal.getsignal(number))


def signal_of(err: BaseException) -> int | None:
    """Return the signal whose handler raised an exception, or None.

    The handler is the user's, and it ran during nbmem's code. Timeouts are implemented like this
    (SIGALRM), and so is the notification that a job ends (SIGTERM).

    Returns:
        The signal's number; None for an exception that no handler raised.
    """
    handlers = {_code_of(signal.getsignal(number)): number for number in signal.valid_signals()}
    handlers.pop(None, None)
    if is_raised(err, KeyboardInterrupt):  # Python's own handler has no frame
        handlers.setdefault(None, signal.SIGINT)
    traceback = traceback_of(err)
    while traceback is not None and handlers:
        found = handlers.get(traceback.tb_frame.f_code)
        if found is not None:
            return found
        traceback = traceback.tb_next
    return handlers.get(None)


def reraise_if_from_signal(err: BaseException) -> None:
    """Raise an exception again if a signal's handler raised it.

    Code that catches everything must not keep it; `entry_points` delivers it in the user's
    frame.
    """
    if signal_of(err) is not None:
        try:
            raise err
        finally:
            del err  # it holds this frame: a cycle would retain the frame whose end delivers it


def _code_of(handler: Any) -> CodeType | None:
    """Return the code object of a signal handler written in Python, or None.

    The handler may be a function, a method, a partial, or an object with a `__call__` method.
    """
    while type(handler) is functools.partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    elif type(handler) is not FunctionType:
        handler = type(handler).__dict__.get("__call__")
    return handler.__code__ if type(handler) is FunctionType else None


@contextlib.contextmanager
def hold_signals() -> Iterator[HeldSignals]:
    """Hold back the signals that Python code handles.

    The caller delivers an interrupt (SIGINT) itself. The other signals' handlers are called when
    the block ends. If two blocks are nested, the outer one also receives the interrupt.

    Signals are handled in the main thread alone, so elsewhere this does nothing.
    """
    held = HeldSignals()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    known = {number: signal.getsignal(number) for number in map(int, signal.valid_signals())}
    before = {number: handler for number, handler in known.items() if callable(handler)}
    try:
        for number in before:
            signal.signal(number, held.take)
        yield held
    finally:
        _put_back(before)
    if held.came and is_holding_handler(before[signal.SIGINT]):
        before[signal.SIGINT](signal.SIGINT, None)
    for number in held.others:
        before[number](number, None)


def _put_back(handlers: dict[int, Any]) -> None:
    """Restore all signal handlers, even if one is called meanwhile and raises."""
    left, raised = dict(handlers), None
    while left:
        try:
            for number in tuple(left):
                signal.signal(number, left[number])
                del left[number]
        except BaseException as err:  # noqa: BLE001 - raised below
            raised = err
    if raised is not None:
        try:
            raise raised
        finally:
            del raised  # as in `reraise_if_from_signal`


def is_holding_handler(handler: Any) -> bool:
    """Return whether a handler is one that holds signals back."""
    return type(handler) is MethodType and handler.__func__ is HeldSignals.take
