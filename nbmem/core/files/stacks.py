"""Python stacks in a torch snapshot, with stacks and frames deduplicated.

If torch also recorded C++ frames (`stacks="all"`, its default), they are omitted. The Python frames
show the line and the code that ran. A thread that runs only C++ has an empty stack, as in a
recording of Python stacks.
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.files.size_limits import MAX_FRAMES
from nbmem.core.session.events import Frame, Stack
from nbmem.core.session.tensor_names import printable_text

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints

_LAST_LINE = 1 << 31
_PLACE = itemgetter("filename", "line", "name")
_NATIVE = frozenset(
    (
        ".c",
        ".cc",
        ".cpp",
        ".cu",
        ".cuh",
        ".cxx",
        ".h",
        ".hpp",
        ".inl",
        ".o",
        ".rs",
        ".s",
        ".so",
        ".tcc",
    )
)
"""Suffixes of C++ files. Most such frames have no line, and `??` or no name."""


class Stacks:
    """Deduplicated stacks of a snapshot, and their frames.

    Torch shares the frames of equal stacks, so identity is compared first. Identities are valid
    while the snapshot is alive, which is as long as this object is. A file may hold copies instead.
    """

    def __init__(self) -> None:
        self.found: list[Stack] = []
        self._by_list: dict[int, int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._frame: dict[int, Frame | None] = {}  # None for a C++ frame
        self._frame_at: dict[tuple[str, int, str], Frame] = {}

    def index_of(self, frames: list[dict[str, Any]] | None) -> int:
        """Return the index of a stack; -1 if it has no Python frame."""
        if not frames:
            return -1
        index = self._by_list.get(id(frames))
        if index is None:
            if type(frames) is not list or len(frames) > MAX_FRAMES:
                raise TypeError(f"frames are no list of at most {MAX_FRAMES:,}")
            index = self._by_list[id(frames)] = self._index(frames)
        return index

    def indices_of(self, column: list[list[dict[str, Any]] | None]) -> Ints:
        """Return the indices of a column of stacks.

        A list that occurs a thousand times is read once.
        """
        keys = np.fromiter(map(id, column), np.int64, len(column))
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        found = [self.index_of(column[row]) for row in first.tolist()]
        return np.array(found, np.int64)[place]

    def _index(self, frames: list[dict[str, Any]]) -> int:
        known = self._frame
        try:
            found = [known[id(frame)] for frame in frames]
        except KeyError:
            found = list(map(self._read, frames))
        stack = tuple([frame for frame in found if frame is not None])
        if not stack:
            return -1
        key = tuple(map(id, stack))
        index = self._by_frames.get(key)
        if index is None:
            index = self._by_frames[key] = len(self.found)
            self.found.append(stack)
        return index

    def _read(self, raw: dict[str, Any]) -> Frame | None:
        if id(raw) in self._frame:
            return self._frame[id(raw)]
        file, line, function = _PLACE(raw)
        if (type(file), type(line), type(function)) != (str, int, str):
            raise TypeError("a frame has no filename, line and name")
        frame = None
        if not _is_native(file, line):
            place = (
                printable_text(file),
                line if 0 <= line < _LAST_LINE else 0,
                printable_text(function),
            )
            frame = self._frame_at.get(place)
            if frame is None:
                frame = self._frame_at[place] = Frame(*place)
        self._frame[id(raw)] = frame
        return frame


def _is_native(file: str, line: int) -> bool:
    """Return whether a frame is of C++.

    Python's frames have a line, and a file of any name.
    """
    return line == 0 or file in ("", "??") or PurePath(file).suffix.lower() in _NATIVE
