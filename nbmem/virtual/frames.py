"""Tracebacks without virtual card frames; warnings at the user's line."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from nbmem.core.runtime.exceptions import exception_chain, set_traceback, traceback_of

_OWN = str(Path(__file__).parent)
_OPS = "torch._ops"
_RECORDING = "nbmem.capture."


def is_own(frame: FrameType) -> bool:
    """Return whether a frame is the virtual card's own code."""
    return frame.f_code.co_filename.startswith(_OWN)


def is_recording(frame: FrameType) -> bool:
    """Return whether a frame is of nbmem's recorder.

    It compares addresses and reads no data.
    """
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(_RECORDING)


def line_outside() -> tuple[CodeType, int]:
    """Return the program's code and instruction that called the card."""
    frame = sys._getframe(1)
    # In inference mode torch._ops decomposes operators between the program and the card.
    while frame.f_back is not None and (is_own(frame) or frame.f_globals.get("__name__") == _OPS):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def without_own(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the virtual card's frames.

    On a real card torch's operators are C++ and have no frames. The removed frames are cleared.
    Otherwise frames that they called keep them alive, and traceback.clear_frames cannot clear them.
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
    """Remove the virtual card's frames from an error and its causes."""
    for one in exception_chain(error):
        set_traceback(one, without_own(traceback_of(one)))


def leave_operator(error: BaseException) -> None:
    """Remove an operator's Python frames from its error and its causes.

    Frames are removed up to the program's own code.
    """
    for one in exception_chain(error):
        way = traceback_of(one)
        while way is not None and (is_own(way.tb_frame) or _is_torchs(way.tb_frame)):
            way = way.tb_next
        set_traceback(one, without_own(way))


def _is_torchs(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] == "torch"


def level_of_user() -> int:
    """Return the `stacklevel` of the first line outside nbmem and torch.

    A warning from the caller uses it.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package != "torch" and not is_own(frame):
            return level
        frame = frame.f_back
        level += 1
    return 1
