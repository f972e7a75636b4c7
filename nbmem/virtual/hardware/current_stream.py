"""A thread's current stream; in backward, that of the node's forward.

Before a node runs, the engine of a real card enters the stream on which the node's forward ran.
So a gradient's memory comes from that stream's pool. A leaf's node has no sequence number of its
creation: its stream is recorded at the node (virtual/tensors/leaf_streams.py).
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/engine.cpp (evaluate_function)
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any

from torch import _C

from nbmem.virtual.devices import CPU, cpp_device

LEAF = 1 << 63
"""Sequence numbers from here on are of nodes that add up a leaf's gradient, not of a time."""
_LONGEST = 4096
"""Changes of stream that are remembered: those of graphs that may still be alive."""
_number_of = itemgetter(0)
next_number: Any = _C._autograd._get_sequence_nr
"""The number that the next node of this thread will have."""


class CurrentStream(threading.local):
    """The current stream of one card in this thread.

    Known limit: a graph made by another thread is treated as one of this thread's.

    Attributes:
        note: The key in a leaf node's metadata that holds its stream on this card.
        before_first: Called before this thread's first change of stream, with this object and the
            leaves used so far. It records the nodes that exist by then.
    """

    before_first: Callable[[CurrentStream, Iterable[Any]], None] | None = None

    def __init__(self, index: int) -> None:
        self.note = f"nbmem: stream of cuda:{index}"
        self._leaves: dict[int, weakref.ref[Any]] = {}
        self._outside = 0
        self._changes: list[tuple[int, int]] = []
        self._inside: tuple[int, int] | None = None
        self._latest = 0

    @property
    def changed(self) -> bool:
        """True if this thread has ever left the default stream."""
        return bool(self._changes)

    @property
    def handle(self) -> int:
        """The handle of the current stream; 0 is the default stream."""
        if not self._changes:
            return 0
        node = _C._current_autograd_node()
        handle = self._outside if node is None else self._of(node)
        if handle != self._changes[-1][1]:  # Nodes are made in a node where a forward runs again.
            self._change(handle)
        return handle

    @handle.setter
    def handle(self, handle: int) -> None:
        if not self._changes and not handle:
            return
        node = _C._current_autograd_node()
        if node is not None:  # Until the node is done, and no longer.
            self._inside = _identity_of(node), handle
            return
        if not self._changes and self.before_first is not None:
            leaves = [leaf for one in list(self._leaves.values()) if (leaf := one()) is not None]
            self._leaves.clear()
            self.before_first(self, leaves)
        self._outside = handle
        self._change(handle)

    def remember(self, leaf: Any) -> None:
        """Remember a leaf used before this thread first changes its stream."""
        key, leaves = id(leaf), self._leaves
        if key not in leaves:
            # No Python function: a signal during its run would be lost.
            leaves[key] = weakref.ref(leaf, partial(leaves.pop, key))

    def _change(self, handle: int) -> None:
        """Assign the autograd nodes made from now on to a stream."""
        number = next_number()
        if self._changes and self._changes[-1][0] == number:
            self._changes.pop()
        self._changes.append((number, handle))
        if len(self._changes) > _LONGEST:
            del self._changes[: _LONGEST // 2]

    def _of(self, node: Any) -> int:
        """Return the stream of a node.

        A leaf's node without a recorded stream takes that of the node run before it. A leaf on
        the CPU takes the stream outside of backward.
        """
        if self._inside is not None:
            if self._inside[0] == _identity_of(node):
                return self._inside[1]
            self._inside = None
        if (number := node._sequence_nr()) < LEAF:
            at = bisect_right(self._changes, number, key=_number_of)
            self._latest = self._changes[at - 1][1] if at else 0
            return self._latest
        if cpp_device(node.variable) == CPU:
            return self._outside
        noted: int = node.metadata.get(self.note, self._latest)
        return noted


def _identity_of(node: Any) -> int:
    """Return a key that tells a node from other live nodes.

    The key is the sequence number, or for a leaf's node the negative id of the leaf.
    """
    number: int = node._sequence_nr()
    return number if number < LEAF else -id(node.variable)
