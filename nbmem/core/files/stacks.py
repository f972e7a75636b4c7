"""The Python stacks in a snapshot of torch's, each once, of frames that are each there once."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.events import Frame
from nbmem.core.files.limits import MOST_FRAMES
from nbmem.core.names import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.events import Stack

_LAST_LINE = 1 << 31
_PLACE = itemgetter("filename", "line", "name")


class Stacks:
    """Stacks met so far, each once, and their frames.

    Torch shares the frames of equal stacks, so identity is asked first. It holds while the
    snapshot is alive, which is as long as this is. A file may hold copies instead.
    """

    def __init__(self) -> None:
        self.found: list[Stack] = []
        self._by_list: dict[int, int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._frame: dict[int, Frame] = {}
        self._frame_at: dict[tuple[str, int, str], Frame] = {}

    def index_of(self, frames: list[dict[str, Any]] | None) -> int:
        """Index of a stack; -1 for none."""
        if not frames:
            return -1
        index = self._by_list.get(id(frames))
        if index is None:
            if type(frames) is not list or len(frames) > MOST_FRAMES:
                raise TypeError(f"frames are no list of at most {MOST_FRAMES:,}")
            index = self._by_list[id(frames)] = self._index(frames)
        return index

    def indices_of(self, column: list[list[dict[str, Any]] | None]) -> NDArray[np.int64]:
        """The same for a column of them: a list that is there a thousand times is read once."""
        keys = np.fromiter(map(id, column), np.int64, len(column))
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        found = [self.index_of(column[row]) for row in first.tolist()]
        return np.array(found, np.int64)[place]

    def _index(self, frames: list[dict[str, Any]]) -> int:
        known = self._frame
        try:
            stack = tuple([known[id(frame)] for frame in frames])
        except KeyError:
            stack = tuple(map(self._read, frames))
        key = tuple(map(id, stack))
        index = self._by_frames.get(key)
        if index is None:
            index = self._by_frames[key] = len(self.found)
            self.found.append(stack)
        return index

    def _read(self, raw: dict[str, Any]) -> Frame:
        frame = self._frame.get(id(raw))
        if frame is None:
            file, line, function = _PLACE(raw)
            if (type(file), type(line), type(function)) != (str, int, str):
                raise TypeError("a frame has no filename, line and name")
            place = (shown(file), line if 0 <= line < _LAST_LINE else 0, shown(function))
            frame = self._frame_at.get(place)
            if frame is None:
                frame = self._frame_at[place] = Frame(*place)
            self._frame[id(raw)] = frame
        return frame
