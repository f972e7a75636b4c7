"""Inspect the stack for the IPython calls that enclose the caller.

The calls are found by the names of their functions. The frames are read instead of a counter,
because an interrupted cell may never reach its closing event. A test fails if IPython changes these
names.
"""

from __future__ import annotations

import sys

RUNS_A_CELL = "run_cell_async"
"""Functions of InteractiveShell."""
RELOADS = "reload_extension"
"""Function of ExtensionManager; `%reload_ext` calls it."""


def cell_depth() -> int:
    """Count the cells that enclose the caller.

    1 in a cell's own hook, 2 in a cell that it runs.
    """
    return _calls_of(RUNS_A_CELL)


def is_reloading() -> bool:
    """Return whether `%reload_ext` is unloading or loading the extension."""
    return _calls_of(RELOADS) > 0


def _calls_of(function: str) -> int:
    count, frame = 0, sys._getframe()  # noqa: SLF001 - the documented call for the current frame
    while frame.f_back is not None:
        frame = frame.f_back
        count += frame.f_code.co_name == function
    return count
