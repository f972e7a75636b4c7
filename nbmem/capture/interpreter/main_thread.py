"""Read the main thread's stack from another thread, without its frames.

A frame object keeps its function's locals alive, and with them tensors that would then be freed in
the wrong thread. faulthandler writes the stack from C, and creates no object.
"""

from __future__ import annotations

import faulthandler
import re
import sysconfig
import tempfile
import threading

from nbmem.core.runtime.entry_points import PACKAGE
from nbmem.core.session.events import Frame, Stack

MAX_FRAMES = 60
"""Limit of frames, the innermost."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_MAX_BYTES = 1 << 20
_WRAPPERS = {"wrapper", "_wrapped_call_impl", "_call_impl", "decorate_context", "inner", "_fn"}
"""Functions that only call another function."""
_HOMES = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))})


class MainThread:
    """A reader of the main thread's stack, at some 50 us a read."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._ident = threading.main_thread().ident

    def place(self) -> Stack:
        """Return the program's innermost line and the library call it is in.

        The library call comes first. Without a line of the program the innermost frame is returned.

        Empty if the stack is unknown.
        """
        stack = self._stack()
        own = next((i for i, frame in enumerate(stack) if not is_foreign(frame.file)), None)
        if own is None:
            return stack[:1]
        called = next((f for f in stack[:own][::-1] if f.function not in _WRAPPERS), None)
        return stack[own : own + 1] if called is None else (called, stack[own])

    def _stack(self) -> Stack:
        self._file.seek(0)
        self._file.truncate()
        faulthandler.dump_traceback(self._file, all_threads=True)
        self._file.seek(0)
        text = self._file.read(_MAX_BYTES).decode("utf-8", "replace")
        return _frames(text, self._ident)

    def close(self) -> None:
        """Close the temporary file."""
        self._file.close()


def is_foreign(file: str) -> bool:
    """Return whether a file is a library's, Python's own or nbmem's."""
    return file.startswith((*_HOMES, PACKAGE, "<frozen")) or "site-packages" in file


def _frames(text: str, ident: int | None) -> Stack:
    found: list[Frame] = []
    ours = False
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            ours = int(thread[1], 16) == ident
        elif ours and (frame := _FRAME.match(line)) and len(found) < MAX_FRAMES:
            found.append(Frame(frame[1], int(frame[2]), frame[3]))
    return tuple(found)
