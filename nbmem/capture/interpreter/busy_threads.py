"""Find other threads that may be using tensors, by their stacks.

Autograd and torch's operators work without the interpreter's lock. So another thread's change to a
tensor may be incomplete whenever nbmem reads. Nothing of another thread's is therefore read while
that thread may be active. Its frames show whether it is, and reading them accesses nothing of
torch's.

The tensors that a thread uses cannot be known from outside: its frames reach the notebook's names,
and a graph those of others. So the rule is coarse. A thread is active while the user's code or
torch is on its stack, unless it waits in Python's library or sleeps. What its own calls reported,
in its own thread, still has names.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from nbmem.core.runtime.bytecode import position
from nbmem.core.runtime.entry_points import is_ours
from nbmem.core.session.source_files import is_library, is_stdlib

_TORCHS_HELPERS = ("utils/data/", "_inductor/", "multiprocessing/", "utils/tensorboard/")
"""Parts of torch whose threads pin, compile or write, and train nothing."""
_INFRASTRUCTURE = frozenset(
    (
        *("IPython", "comm", "debugpy", "ipykernel", "jupyter_client", "tornado", "traitlets"),
        *("zmq", "_pydev_bundle", "_pydevd_bundle", "pydevd"),
    )
)
"""Packages with threads of their own in a kernel; editors load some from folders of their own."""
_WAITING = frozenset(
    (
        *("wait", "wait_for", "join", "get", "acquire", "result", "select", "poll", "accept"),
        *("_wait_for_tstate_lock", "_try_wait", "_worker", "_poll", "communicate"),
        *("recv", "_recv", "recv_into", "recv_bytes", "read", "readinto", "readline", "getch"),
    )
)
"""Functions of threading, queue, concurrent, selectors, socket, subprocess and multiprocessing in
which a thread waits for another one, or for external input."""
_SLEEP = re.compile(r"\bsleep\s*\(")


def threads_using_tensors() -> list[str]:
    """Return the names of other threads that may be using tensors now.

    Each thread is listed once.

    A thread counts if the user's code or torch is on its stack. It does not if it waits in a
    function of Python's library (a queue, a lock, a socket) or sleeps.
    """
    this_thread = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        names.get(ident) or f"thread {ident}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - the documented way
        if ident != this_thread and _may_use_tensors(frame)
    ]


def alive() -> set[int]:
    """Return the identifiers of threads that run Python code or could."""
    return set(sys._current_frames())  # noqa: SLF001 - the documented way


def _may_use_tensors(innermost: FrameType) -> bool:
    if _waits(innermost) or is_ours(innermost):
        return False
    return any(_is_users(frame) or _is_torchs(frame) for frame in outwards(innermost))


def _waits(frame: FrameType) -> bool:
    """Return whether a thread waits in Python's library, or sleeps."""
    code = frame.f_code
    return (code.co_name in _WAITING and is_stdlib(code.co_filename)) or _sleeps(frame)


def _sleeps(frame: FrameType) -> bool:
    code = frame.f_code
    found = position(code, frame.f_lasti)
    if found is None or found[0] != found[1]:
        return False
    line, _, begin, end = found
    text = linecache.getline(code.co_filename, line)
    return bool(_SLEEP.search(text.encode()[begin:end].decode(errors="replace")))


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_torchs(frame: FrameType) -> bool:
    if _package(frame) != "torch":
        return False
    path = frame.f_globals["__name__"].replace(".", "/").removeprefix("torch/") + "/"
    return not path.startswith(_TORCHS_HELPERS)


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame is of a cell, a script or an uninstalled module."""
    file = frame.f_code.co_filename
    if is_library(file) or is_ours(frame):
        return False
    return _package(frame) not in _INFRASTRUCTURE


def _package(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if type(name) is str else ""
