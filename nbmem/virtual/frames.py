"""Whose line it is: tracebacks without the virtual card's frames, warnings at the user's line."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.core.runtime.exceptions import behind, set_traceback, traceback_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, TracebackType

_OWN = str(Path(__file__).parent)
_OPS = "torch._ops"


def is_own(frame: FrameType) -> bool:
    """Whether a frame is the virtual card's, which a real card would not have."""
    return frame.f_code.co_filename.startswith(_OWN)


def line_outside() -> tuple[CodeType, int]:
    """Where in the program the virtual card is asked: code and instruction."""
    frame = sys._getframe(1)
    # In inference mode torch._ops takes operators apart between the program and the card.
    while frame.f_back is not None and (is_own(frame) or frame.f_globals.get("__name__") == _OPS):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def without_own(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback as it would be on a real card: torch's operators are C++ there.

    Frames that are left out let go of what they hold: a frame that they called keeps them alive,
    and nobody who clears the traceback's frames would reach them.
    """
    traceback = _next_of_program(traceback)
    kept = traceback
    while kept is not None:
        kept.tb_next = _next_of_program(kept.tb_next)
        kept = kept.tb_next
    return traceback


def _next_of_program(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and is_own(traceback.tb_frame):
        with suppress(RuntimeError):  # it still runs
            traceback.tb_frame.clear()
        traceback = traceback.tb_next
    return traceback


def hide_own(error: BaseException | None) -> None:
    """Take the virtual card's frames off an error and off those that led to it."""
    for one in _with_causes(error):
        set_traceback(one, without_own(traceback_of(one)))


def leave_operator(error: BaseException) -> None:
    """Take off what an operator ran in Python, up to the program's own code, if that raised it."""
    for one in _with_causes(error):
        way = traceback_of(one)
        while way is not None and (is_own(way.tb_frame) or _is_torchs(way.tb_frame)):
            way = way.tb_next
        set_traceback(one, without_own(way))


def _is_torchs(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] == "torch"


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, its cause, its context and its members, and theirs, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += behind(one)


def level_of_user() -> int:
    """`stacklevel` for a warning from the caller: the first line outside of nbmem and torch."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package != "torch" and not is_own(frame):
            return level
        frame = frame.f_back
        level += 1
    return 1
