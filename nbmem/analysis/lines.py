"""Which line of the user's own code an event came from."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.core.events import Frame, Stack

LIBRARIES = ("site-packages", "dist-packages", "lib/python", "<frozen", "nbmem/")
"""Parts of a path that is not the user's."""


def users_line(stack: Stack) -> str | None:
    """`train.py:12 in step`: the innermost frame outside of libraries; None for an empty stack."""
    for frame in stack:
        if not any(part in frame.file for part in LIBRARIES):
            return _text(frame)
    return _text(stack[0]) if stack else None


def _text(frame: Frame) -> str:
    return f"{PurePath(frame.file).name}:{frame.line} in {frame.function}"
