"""Leaks of every kind that Python allows, for a test of the census."""

from __future__ import annotations

import atexit
import codecs
import contextvars
import ctypes
import functools
import gc
import itertools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import types
import warnings
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.leaks import census
from tests.leaks import object_paths as ways

LARGE = 256 * 1024

numbers = itertools.count()
items: list[int] = []
texts: dict[str, int] = {}
members: set[int] = set()
ends: deque[int] = deque()
characters = bytearray()
figures = array("q")
latest: deque[int] = deque(maxlen=2)
variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)
local = threading.local()
kept: list[Any] = []
released = threading.Event()
heap: Any = ctypes.CDLL(None)
heap.malloc.restype = ctypes.c_void_p
heap.memset.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Mine:
    """A type of its own for planted leaks."""


@functools.cache
def remembered(number: int) -> int:
    """A cache without a bound."""
    return number


@functools.lru_cache(maxsize=3)
def bounded(number: int) -> int:
    """A cache with one."""
    return number


def nothing(*_arguments: object) -> None:
    """Do nothing, wherever it is called from."""


def _temporary() -> None:
    os.close(tempfile.mkstemp()[0])


def _weak_reference() -> None:
    told = functools.partial(nothing)
    local.references = (getattr(local, "references", None), weakref.ref(Mine, told))


def _in_a_context() -> None:
    variable.set((variable.get(), Mine()))


def _frame() -> None:
    running = (Mine() for _ in itertools.count())
    next(running)
    local.running = (getattr(local, "running", None), running)


def _reference_of_c() -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(Mine.__init__))


def _bytes_of_c() -> None:
    heap.memset(heap.malloc(LARGE), 1, LARGE)


def _number() -> int:
    return next(numbers)


PLANTED: dict[str, tuple[Callable[[], object], str]] = {
    "list": (lambda: items.append(1), "tests.leaks.planted.items"),
    "dict": (lambda: texts.setdefault(f"{_number()}", 1), "tests.leaks.planted.texts"),
    "set": (lambda: members.add(_number()), "tests.leaks.planted.members"),
    "deque": (lambda: ends.append(1), "tests.leaks.planted.ends"),
    "bytearray": (lambda: characters.append(1), "tests.leaks.planted.characters"),
    "array": (lambda: figures.append(1), "tests.leaks.planted.figures"),
    "cache": (lambda: remembered(_number()), "tests.leaks.planted.remembered"),
    "module": (lambda: setattr(types, f"n{_number()}", 1), "types (dict)"),
    "class": (lambda: setattr(logging.Filter, f"n{_number()}", 1), "logging.Filter"),
    "atexit": (lambda: atexit.register(nothing, _number()), "functions called at exit"),
    "gc.callbacks": (lambda: gc.callbacks.append(lambda *_: None), "gc.callbacks"),
    "warnings": (lambda: warnings.filterwarnings("ignore", f"n{_number()}"), "warnings.filters"),
    "meta_path": (lambda: sys.meta_path.append(types), "sys.meta_path"),  # type: ignore[arg-type]
    "path_hooks": (lambda: sys.path_hooks.append(nothing), "sys.path_hooks"),  # type: ignore[arg-type]
    "codecs": (
        lambda: codecs.register(lambda _name: None),
        "an object that no module leads to: list",
    ),
    "logging": (lambda: logging.root.addHandler(logging.NullHandler()), "logging.NullHandler"),
    "environment": (
        lambda: os.environ.setdefault(f"N{_number()}", ""),
        "variables of the environment",
    ),
    "thread": (lambda: threading.Thread(target=released.wait, daemon=True).start(), "  threads\n"),
    "file": (lambda: kept.append(os.open(os.devnull, os.O_RDONLY)), "open files"),
    "temporary file": (_temporary, "temporary files"),
    "process": (lambda: kept.append(subprocess.Popen(["sleep", "60"])), "child processes"),
    "signal": (
        lambda: signal.signal(signal.SIGRTMIN + 1 + _number() % 8, nothing),
        "handlers of signals",
    ),
    "finalizer": (lambda: weakref.finalize(Mine, lambda: None), "weakref.finalize._registry"),
    "weak reference": (_weak_reference, "functools.partial"),
    "context": (_in_a_context, "tests.leaks.planted.Mine"),
    "frame": (_frame, "builtins.generator"),
    "reference of C's": (lambda: ctypes.pythonapi.Py_IncRef(ctypes.py_object(nothing)), "nothing)"),
    "bytes of C's": (_bytes_of_c, "KiB of C's heap"),
    "resident bytes": (_bytes_of_c, "resident KiB"),
}
"""What is done, by its name, and what the census says of it."""


def harmless() -> None:
    """Add to what has a bound."""
    latest.append(_number())
    bounded(_number())


def main() -> None:
    """Print the growth by harmless work and by planted leaks."""
    print(*census.grown_by(harmless), sep="\n")
    print("---")
    try:
        print(*census.grown_by(lambda: [plant() for plant, _ in PLANTED.values()]), sep="\n")
        print("---", *ways.foreign_references("tests", "__main__"), sep="\n")
    finally:
        for one in kept:
            if isinstance(one, subprocess.Popen):
                one.kill()
