"""The function that has ended, whose variables are among a script's names.

A heap walk does not enter its frame: what a variable holds is no leftover of a traceback that leads
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_frames: list[FrameType] = []


def frames_of_names() -> list[FrameType]:
    """Return the frames that a heap walk does not enter now."""
    return _frames.copy()


@contextmanager
def as_names(frame: FrameType) -> Iterator[None]:
    """Let the variables of this frame be names for a while."""
    _frames[:] = [frame]
    try:
        yield
    finally:
        _frames.clear()
