"""Find the line of the user's code that an event came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbmem.core.session.source_files import TOP_LEVEL, is_library, is_ours, is_users, with_slashes

if TYPE_CHECKING:
    from nbmem.core.session.events import Frame, Stack

KERNEL_CELL = re.compile(r"[\\/](?:ipykernel_\d+[\\/]|ipython-input-)\d+\.py$")
"""A cell of another kernel, or of an IPython that does not report its number."""
NUMBERED_CELL = re.compile(r"(?:^<|[\\/])ipython-input-(\d+)-")
"""File names of a terminal's cell, of Colab's, and of a kernel's (from `probes.cells`)."""


def users_line(stack: Stack) -> str | None:
    """Return the innermost frame outside libraries: `train.py:12 in step`.

    If there is none (the engine's thread has no Python frames of the user's), the innermost frame
    of a library; None for an empty stack.
    """
    others = [frame for frame in stack if not is_ours(frame.file)]
    for frame in others:
        if not is_library(frame.file):
            return _text(frame)
    return _text(others[0]) if others else None


def users_stack(stack: Stack) -> tuple[str, ...]:
    """Return the user's own lines of a stack, innermost first.

    Frames of libraries are left out.
    """
    return tuple(_text(frame) for frame in stack if is_users(frame))


def name_of(file: str) -> str:
    """Return a recorded file's display name: `train.py`, `In [7]`.

    A cell without a number is `the cell`.
    """
    if KERNEL_CELL.search(file):
        return "the cell"
    match = NUMBERED_CELL.search(file)
    return f"In [{match[1]}]" if match else with_slashes(file).rpartition("/")[2]


def frame_line(frame: Frame) -> str:
    """Format a frame's place without its function: `train.py:12`.

    For a cell: `In [7], line 3`.
    """
    if KERNEL_CELL.search(frame.file):  # a file that exists only in the kernel's memory
        return f"line {frame.line} of the cell"
    name = name_of(frame.file)
    return (
        f"{name}, line {frame.line}" if NUMBERED_CELL.search(frame.file) else f"{name}:{frame.line}"
    )


def _text(frame: Frame) -> str:
    where = frame_line(frame)
    return where if frame.function.startswith(TOP_LEVEL) else f"{where} in {frame.function}"
