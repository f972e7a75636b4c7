"""Errors shown as on a real card, where torch's operators are C++.

An operator leaves no frame (frames.py). Frames of functions that replace torch's are removed where
an error is shown: by Python's hooks, by the module `traceback` (logging, DataLoader's workers), or
by IPython, which stores for `%tb` and `%debug` what it has shown.
"""

from __future__ import annotations

import sys
import threading
import traceback as tracebacks
from types import TracebackType
from typing import Any

from nbmem.virtual.frames import hide_own, without_own
from nbmem.virtual.patches.patcher import Patch, patches_of

_WALKERS = ("walk_tb", "_walk_tb_with_full_positions")
"""Functions with which all of `traceback` walks a traceback."""


def traceback_patches() -> list[Patch]:
    """Return patches of everything that shows an error."""
    return [*_hooks(), *_walkers(), *_shell()]


def _hooks() -> list[Patch]:
    original_hook, original_thread, original_lost = (
        sys.excepthook,
        threading.excepthook,
        sys.unraisablehook,
    )

    def excepthook(kind: Any, error: BaseException, traceback: TracebackType | None) -> None:
        hide_own(error)
        shown = without_own(traceback)
        original_hook(kind, error.with_traceback(shown), shown)

    def of_thread(args: Any) -> Any:
        hide_own(args.exc_value)
        return original_thread(args)

    def of_finalizer(args: Any) -> Any:
        hide_own(args.exc_value)
        return original_lost(args)

    return [
        Patch(sys, "excepthook", excepthook, is_hook=True),
        Patch(threading, "excepthook", of_thread, is_hook=True),
        Patch(sys, "unraisablehook", of_finalizer, is_hook=True),
    ]


def _walkers() -> list[Patch]:
    def hiding(walk: Any) -> Any:
        return lambda traceback: walk(without_own(traceback))

    names = {name: hiding(vars(tracebacks)[name]) for name in _WALKERS if name in vars(tracebacks)}
    return patches_of(tracebacks, names)


def _shell() -> list[Patch]:
    """Return a patch of IPython's access to the error it shows.

    Empty without IPython.
    """
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    original_look = getattr(shell, "_get_exc_info", None)
    if original_look is None:
        return []

    def show(self: Any, exc_tuple: Any = None) -> Any:
        hide_own(sys.exc_info()[1] if exc_tuple is None else exc_tuple[1])
        return original_look(self, exc_tuple)

    return [Patch(shell, "_get_exc_info", show)]
