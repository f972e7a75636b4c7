"""Guards for the points where foreign code enters nbmem.

Foreign code is torch, IPython, the interpreter or a thread. Whatever it calls is guarded by
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from nbmem.core.runtime.exceptions import (
    clear_traceback,
    is_raised,
    linked_exceptions,
    traceback_of,
)
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.interrupts import SignalDelivery, can_deliver, signal_of
from nbmem.core.runtime.warning_filter import suppress_warnings

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

logger = logging.getLogger("nbmem")

_PACKAGE = str(Path(__file__).parents[2]) + os.sep

_P = ParamSpec("_P")
_R = TypeVar("_R")


def entry(  # noqa: PLR0913 - what differs from one caller to another
    part: str,
    *,
    otherwise: Callable[..., Any] | None = None,
    lost: Callable[[str, Exception], None] | None = None,
    interrupted: Callable[[], None] | None = None,
    ends: bool = False,
    lasts: bool = False,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a function that foreign code calls.

    Args:
        part: What is lost with it, for the note: "the phases from here on".
        otherwise: Called with the same arguments after a fault, for what to return; it must not
            fail. None to return None.
        lost: Leaves the note; None for the method `lost` of the function's first argument.
        interrupted: Called for an interrupt instead of delivering it, unless the first argument has
            a method `take_interrupt`, which is asked before; None to deliver it.
        ends: Whether `otherwise` ends what was begun. Then it is called, too, where the exception
            goes up: an exit, or an interrupt where no signal can be (in a thread, or where Ctrl-C
            is ignored, as in what a shell has started with `&`).
        lasts: Whether it is a thread's own function: what it calls suppresses its warnings itself,
            for the filter is not to stand in the user's list for as long as the thread lives.
    """

    def mark(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            try:
                if lasts:
                    return function(*args, **kwargs)
                with suppress_warnings():
                    return function(*args, **kwargs)
            except BaseException as err:  # noqa: BLE001 - the one place for what is met outside
                first: Any = args[0] if args else None
                takes = hasattr(type(first), "take_interrupt")
                within = is_ours(sys._getframe(1))  # noqa: SLF001 - as in `caller`
                try:
                    again = handle_exception(  # noqa: F841 - kept: a delivery waits for this frame's end
                        err,
                        part,
                        lost or getattr(first, "lost", None),
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
    lost: Callable[[str, Exception], None] | None,
    interrupted: Callable[[], None] | None = None,
    *,
    within: bool = False,
) -> SignalDelivery | None:
    """Handle an exception that must not reach nbmem's caller.

    Args:
        err: The exception.
        part: What is lost with it, for the note.
        lost: Leaves the note.
        interrupted: Called for an interrupt instead of delivering it; None to deliver it.
        within: Whether nbmem called, with an entry further out: what a handler raised goes up to
            that one. Delivered, it would come when Python next asks for signals, which may be after
            the caller has ended (3.12 asks less often).

    Returns:
        For what a signal's handler raised: what delivers it where it is let go of. Else None.

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
        _leave_note(lost, part, err)
        clear_handled_tracebacks(err)
        return None
    try:
        raise err
    finally:
        del err  # as in `let_pass`: it would keep every frame that it came through


def clear_handled_tracebacks(err: BaseException) -> None:
    """Clear the tracebacks of a handled exception and of its context.

    A frame that refers to one of them is kept alive by it, as is the frame of each generator-based
    context manager that suppressed it. With them nbmem's outermost frame stays, whose end delivers
    an interrupt. The interrupt would then come when the collector runs, in a later cell. An
    exception that was caught before nbmem was called begins in a frame that is not nbmem's. It
    stays whole.
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

    The frames are searched and not counted: a count changes with every function between.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to one's own
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return frame


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _leave_note(lost: Callable[[str, Exception], None] | None, part: str, err: Exception) -> None:
    try:
        logger.debug("lost %s", part, exc_info=err)
        if lost is not None:
            lost(part, err)
    except Exception:  # noqa: BLE001, S110 - there is nobody left to tell
        pass
