"""The stream that a thread's work is queued on; in backward it is that of the node's forward.

The engine of a real card enters the stream on which a node's forward ran before it calls the node,
so that a gradient's memory comes from that stream's pool.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/engine.cpp (evaluate_function)
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import itemgetter
from typing import Any

from torch import _C

_LEAF = 1 << 63
"""From here on a node's number says that it adds up a leaf's gradient, not when it was made."""
_LONGEST = 4096
"""Changes of stream that are remembered: those of graphs that may still be alive."""
_number_of = itemgetter(0)
_next_number: Any = _C._autograd._get_sequence_nr  # type: ignore[attr-defined]


class CurrentStream(threading.local):
    """One card's current stream in this thread.

    Known limit: a graph made by another thread is taken for one of this thread's.
    """

    def __init__(self) -> None:
        self._outside = 0
        self._changes: list[tuple[int, int]] = []
        self._inside: tuple[int, int] | None = None
        self._latest = 0

    @property
    def handle(self) -> int:
        """Its handle; 0 is the default stream."""
        if not self._changes:
            return 0
        node = _C._current_autograd_node()
        return self._outside if node is None else self._of(node._sequence_nr())

    @handle.setter
    def handle(self, handle: int) -> None:
        if not self._changes and not handle:
            return
        node = _C._current_autograd_node()
        if node is not None:  # Until the node is done, and no longer.
            self._inside = node._sequence_nr(), handle
            return
        self._outside = handle
        self._changes.append((_next_number(), handle))
        if len(self._changes) > _LONGEST:
            del self._changes[: _LONGEST // 2]

    def _of(self, number: int) -> int:
        """The stream of a node; a leaf's gradient is added up where it was last made."""
        if self._inside is not None:
            if self._inside[0] == number:
                return self._inside[1]
            self._inside = None
        if number < _LEAF:
            at = bisect_right(self._changes, number, key=_number_of)
            self._latest = self._changes[at - 1][1] if at else 0
        return self._latest
