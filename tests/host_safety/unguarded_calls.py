"""Find calls into nbmem that lack the guard of an entry point.

A fault in such a function is an exception in torch, in IPython, in a thread or in the user's cell.
Programs that touch all of nbmem run under a profiler; whoever calls in from outside, past the frame
of an `entry`, is noted. The user's own calls are let pass: who calls `nbmem.open` wants to know.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import nbmem
from nbmem.core.session.source_files import is_stdlib

PACKAGE = str(Path(nbmem.__file__).parent) + os.sep
CARD = (PACKAGE + "virtual" + os.sep, PACKAGE + "allocator" + os.sep)
"""A virtual card is no guest: it is called as torch's operators are, and calls on as they do."""
GUARDED = "nbmem.core.runtime.entry_points.entry.<locals>.mark.<locals>.guarded"


class Finder:
    """Record unguarded calls from outside, in every thread.

    Attributes:
        found: By the function that was called, where from.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._kinds: dict[CodeType, str] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch."""
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call" or self._kind(frame) != "ours":
            return
        name = name_of(frame)
        if name == GUARDED or name in self.found or _is_no_call(frame):
            return
        caller = frame.f_back
        while caller is not None and self._kind(caller) == "between":
            of_card = caller.f_code.co_filename.startswith(CARD)
            if of_card and name.startswith(("nbmem.core.", "nbmem.core.files.")):
                return  # a form in which the card answers
            caller = caller.f_back
        if caller is None:
            self.found[name] = "the interpreter or a thread"
        elif self._kind(caller) == "foreign":
            self.found[name] = f"{name_of(caller)}:{caller.f_lineno}"

    def _kind(self, frame: FrameType) -> str:
        code = frame.f_code
        if code not in self._kinds:
            self._kinds[code] = _kind_of(code.co_filename, str(frame.f_globals.get("__name__")))
        return self._kinds[code]


def _kind_of(file: str, module: str) -> str:
    """Classify a frame as `ours`, `between` or `foreign`."""
    if file.startswith(CARD):
        return "between"
    if file.startswith(PACKAGE):
        return "ours"
    if is_stdlib(file):
        return "between"
    if file == "<string>":  # what dataclasses and named tuples are made of
        return "made" if module.startswith("nbmem") else "between"
    return "foreign"


def _is_no_call(frame: FrameType) -> bool:
    """Return whether a frame is a body or a resumed generator."""
    return frame.f_code.co_name == "<module>" or "__qualname__" in frame.f_code.co_names[:2]


def name_of(frame: FrameType) -> str:
    """Return the location of a frame's function."""
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
