"""Ctrl-C and other signals while something must not be cut in two: held back, delivered after.

What a signal's handler raises is the user's wherever it is met. The handler's own code is in the
traceback, so whatever catches everything asks here whether it may keep what it caught.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import threading
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Self

from nbmem.core.runtime.exceptions import is_raised, traceback_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType


class Interrupts:
    """What came while signals were held back.

    Attributes:
        came: Whether an interrupt did (Ctrl-C).
        others: The other signals that did, in their order, each once.
    """

    def __init__(self) -> None:
        self.came = False
        self.others: dict[int, None] = {}

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for this to end."""
        return self.came or bool(self.others)

    def take(self, number: int, _frame: Any) -> None:
        """Note one; what Python calls for a signal."""
        if number == signal.SIGINT:
            self.came = True
        else:
            self.others[number] = None


class Delivery(functools.partial):  # type: ignore[type-arg]
    """Has a signal come once more, when it is let go of: no Python code runs between.

    Kept in a variable of a function that is about to end, it has the signal's handler called in the
    frame of the caller, and no frame of nbmem's is in the traceback.
    """

    def __new__(cls, number: int = signal.SIGINT) -> Self:
        """Deliver this signal."""
        return super().__new__(cls, _thread.interrupt_main, number)

    __del__ = functools.partial.__call__


def can_deliver(number: int = signal.SIGINT) -> bool:
    """Whether a signal of this thread can be delivered once more."""
    main = threading.current_thread() is threading.main_thread()
    return main and callable(signal.getsignal(number))


def signal_of(err: BaseException) -> int | None:
    """The signal that an exception came by: its handler, the user's, raised it in nbmem's code.

    A limit of time is made so (SIGALRM), and the end of a job is told so (SIGTERM).

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


def let_pass(err: BaseException) -> None:
    """Raise again what a signal's handler raised: it is not for code that catches everything.

    `nbmem.core.runtime.entry_points` delivers it in the user's own frame.
    """
    if signal_of(err) is not None:
        try:
            raise err
        finally:
            del err  # it holds this frame: a cycle would keep the frame whose end delivers it


def _code_of(handler: Any) -> CodeType | None:
    """The code of a handler in Python: a function, a method, a partial, an object with a call."""
    while type(handler) is functools.partial:
        handler = handler.func
    if type(handler) is MethodType:
        handler = handler.__func__
    elif type(handler) is not FunctionType:
        handler = type(handler).__dict__.get("__call__")
    return handler.__code__ if type(handler) is FunctionType else None


@contextlib.contextmanager
def held_back() -> Iterator[Interrupts]:
    """Hold back the signals that Python code handles.

    An interrupt (SIGINT) is left to whoever asks for this: they see to it that it is delivered. The
    others' handlers are called when this ends. Of two within each other the outer one is told, too.

    Signals are handled in the main thread alone, so elsewhere this does nothing.
    """
    held = Interrupts()
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
    if held.came and is_taken(before[signal.SIGINT]):
        before[signal.SIGINT](signal.SIGINT, None)
    for number in held.others:
        before[number](number, None)


def _put_back(handlers: dict[int, Any]) -> None:
    """Put handlers back, all of them, though one may be called meanwhile and raise."""
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
            del raised  # as in `let_pass`


def is_taken(handler: Any) -> bool:
    """Whether a handler is one of those that hold signals back."""
    return type(handler) is MethodType and handler.__func__ is Interrupts.take
