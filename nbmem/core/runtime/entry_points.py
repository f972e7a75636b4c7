"""Guards for the points where foreign code enters nbmem.

Foreign code is torch, IPython, the interpreter or a thread. Functions that it calls are guarded by
`entry`: a fault inside becomes a note, and the caller continues as if nbmem were not there.
tests/faults finds unguarded functions that foreign code calls. Warnings raised inside are nbmem's
own and are ignored.

An interrupt is the user's, and so is an exception that the user's handler of another signal raises.
It is delivered again in the user's frame, right after nbmem's last frame ends. An object whose
`__del__` is `interrupt_main` does this: it is freed with that frame.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from nbmem.core.runtime.exceptions import (
    clear_traceback,
    is_raised,
    linked_exceptions,
    traceback_of,
)
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.interrupts import SignalDelivery, can_deliver, signal_of
from nbmem.core.runtime.warning_filter import suppress_warnings

logger = logging.getLogger("nbmem")

PACKAGE = str(Path(sys.modules[__name__.partition(".")[0]].__path__[0])) + os.sep
"""nbmem's own folder, with a separator at its end."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def entry(  # noqa: PLR0913 - options that differ between callers
    part: str,
    *,
    otherwise: Callable[..., Any] | None = None,
    on_fault: Callable[[str, Exception], None] | None = None,
    interrupted: Callable[[], None] | None = None,
    ends: bool = False,
    lasts: bool = False,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a function that foreign code calls.

    Args:
        part: What is lost with it, for the note: "the phases from here on".
        otherwise: Called with the same arguments after a fault, for the return value; it must not
            fail. None to return None.
        on_fault: Records the note; None for the method `on_fault` of the function's first argument.
        interrupted: Called for an interrupt instead of delivering it. A method `take_interrupt` of
            the first argument takes precedence. None to deliver it.
        ends: Whether `otherwise` ends what was begun. Then it is also called if the exception
            propagates. That is an exit, or an interrupt that cannot be delivered as a signal. The
            latter occurs in a thread, and if Ctrl-C is ignored, as in a shell's `&` job.
        lasts: Whether it is a thread's own function. Functions that it calls suppress their
            warnings themselves, so that the filter is not in the user's list for the thread's
            lifetime.
    """

    def mark(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            try:
                if lasts:
                    return function(*args, **kwargs)
                with suppress_warnings():
                    return function(*args, **kwargs)
            except BaseException as err:  # noqa: BLE001 - for exceptions from outside
                first: Any = args[0] if args else None
                takes = hasattr(type(first), "take_interrupt")
                within = is_ours(sys._getframe(1))  # noqa: SLF001 - as in `caller`
                try:
                    again = handle_exception(  # noqa: F841 - delivers at this frame's end
                        err,
                        part,
                        on_fault or getattr(first, "on_fault", None),
                        first.take_interrupt if takes else interrupted,
                        within=within,
                    )
                except BaseException:
                    if (ends or within) and otherwise is not None:
                        otherwise(*args, **kwargs)
                    raise
            return None if otherwise is None else otherwise(*args, **kwargs)

        return guarded

    return mark


def handle_exception(
    err: BaseException,
    part: str,
    on_fault: Callable[[str, Exception], None] | None,
    interrupted: Callable[[], None] | None = None,
    *,
    within: bool = False,
) -> SignalDelivery | None:
    """Handle an exception that must not reach nbmem's caller.

    Args:
        err: The exception.
        part: What is lost with it, for the note.
        on_fault: Records the note.
        interrupted: Called for an interrupt instead of delivering it; None to deliver it.
        within: Whether nbmem called, inside an outer entry. A handler's exception then propagates
            to the outer entry. Delivered here, it would be raised when Python next checks for
            signals, possibly after the caller has ended (3.12 checks less often).

    Returns:
        For an exception of a signal's handler: an object that delivers it when it is freed. Else
        None.

    Raises:
        BaseException: `err`, if it is no fault of nbmem's (an exit), or cannot be delivered.
    """
    number = signal_of(err)
    if number == signal.SIGINT and interrupted is not None:
        clear_handled_tracebacks(err)
        interrupted()
        return None
    if number is not None and not within and can_deliver(number):
        clear_handled_tracebacks(err)
        return SignalDelivery(number)
    if is_raised(err, Exception) and (number is None or not within):
        _leave_note(on_fault, part, err)
        clear_handled_tracebacks(err)
        return None
    try:
        raise err
    finally:
        del err  # as in `reraise_if_from_signal`: it would retain every frame that it passed


def clear_handled_tracebacks(err: BaseException) -> None:
    """Clear the tracebacks of a handled exception and of its context.

    A frame that refers to one of them is kept alive by it. So is the frame of each generator-based
    context manager that suppressed it. These retain nbmem's outermost frame, whose end delivers an
    interrupt. The interrupt would then be delivered when the collector runs, in a later cell. An
    exception that was caught before nbmem was called begins in a frame that is not nbmem's. It is
    not changed.
    """
    seen: BaseException | None = err
    while seen is not None and (way := traceback_of(seen)) is not None and is_ours(way.tb_frame):
        clear_traceback(seen)
        _, seen, *_ = linked_exceptions(seen)


def fault_note(part: str, err: BaseException) -> str:
    """Return the note for a fault of nbmem's own."""
    return f"nbmem lost {part}: {error_of(err)}. The cell itself is not affected."


def caller() -> FrameType | None:
    """Return the innermost frame outside of nbmem, or None if there is none.

    The frames are searched and not counted: a count changes with every function in between.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to the own frame
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return frame


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package."""
    return frame.f_code.co_filename.startswith(PACKAGE)


def _leave_note(
    on_fault: Callable[[str, Exception], None] | None, part: str, err: Exception
) -> None:
    try:
        logger.debug("lost %s", part, exc_info=err)
        if on_fault is not None:
            on_fault(part, err)
    except Exception:  # noqa: BLE001, S110 - there is nothing left to notify
        pass
