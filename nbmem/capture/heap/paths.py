"""Find the shortest paths from places to tensors, searching backwards.

Only the few objects that lead to the tensors are retained.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterator
from typing import Any

from nbmem.capture.heap.reachability import AT_ONCE, ForwardWalk

MAX_EDGES = 3_000_000
"""References that are read backwards, about half a gigabyte of them. Those beyond are omitted, and
the walk is incomplete."""
MAX_STEPS = 5_000_000
"""Steps forward from all places together: exceeded only if hundreds of names share a large
graph."""
TRIES = 4
"""After this many checks for references to some objects without a match, a piece is read anyway."""
STRIDE = 512
"""Objects between two points at which the caller may stop the search."""


class HeapPaths:
    """The part of the reached objects that leads to some tensors.

    Attributes:
        complete: Whether every path was searched.
    """

    def __init__(self, reach: ForwardWalk, targets: set[int]) -> None:
        self.complete = True
        self._reach = reach
        self._targets = targets
        self._objects: dict[int, Any] = {key: reach.tensors[key] for key in targets}
        self._onward: dict[int, list[int]] = {}
        self._sources: dict[int, list[int]] = {}
        self._source: dict[int, Any] = {}
        self._edges = 0
        self._taken = 0

    def steps(self) -> Iterator[None]:
        """Go back from the tensors until nothing new leads to them."""
        onward, objects = self._onward, self._objects
        into = yield from self._inward()
        read: set[int] = set()
        tries: Counter[int] = Counter()
        level = list(self._targets)
        while level:
            for index, keys in self._unread(level, into, read).items():
                tries[index] += 1
                if tries[index] > TRIES or self._reach.refers_to_any(index, keys):
                    read.add(index)
                    yield from self._read(index)
                yield
            new = []
            for i, key in enumerate(level):
                for source in self._sources.get(key, ()):
                    if source in onward:
                        onward[source].append(key)
                    else:
                        onward[source] = [key]
                        if source not in objects:
                            objects[source] = self._source[source]
                            new.append(source)
                if not i % STRIDE:
                    yield
            level = new

    def _inward(self) -> Generator[None, None, dict[int, list[int]]]:
        """Return, for each piece, the pieces that refer to it."""
        into: dict[int, list[int]] = defaultdict(list)
        for index, refers in enumerate(self._reach.refers()):
            for inner in refers:
                into[inner].append(index)
            yield
        return into

    def _unread(
        self, level: list[int], into: dict[int, list[int]], read: set[int]
    ) -> dict[int, set[int]]:
        """Return the unread pieces that may refer to some objects.

        Each piece has the ids of those objects.
        """
        by_place: dict[int, list[int]] = defaultdict(list)
        for key in level:
            by_place[self._reach.place_of(key)].append(key)
        unread: dict[int, set[int]] = defaultdict(set)
        for place, keys in by_place.items():
            if place in into:
                into[place] = [index for index in into[place] if index not in read]
                for index in into[place]:
                    unread[index].update(keys)
        return unread

    def _read(self, index: int) -> Iterator[None]:
        """Record, for each object of a piece, to which objects it refers."""
        sources, noted = self._sources, self._reach.noted
        for i, obj in enumerate(self._reach.piece(index)):
            if self._edges > MAX_EDGES:
                self.complete = False
                return
            source = id(obj)
            self._source[source] = obj
            inner = self._reach.referents(obj)
            for start in range(0, len(inner), AT_ONCE):
                found = noted(inner[start : start + AT_ONCE])
                self._edges += len(found)
                for key in found:
                    if key in sources:
                        sources[key].append(source)
                    else:
                        sources[key] = [source]
                if start:
                    yield
            if not i % STRIDE:
                yield

    def from_start(self, start: object) -> Iterator[tuple[int, list[Any]] | None]:
        """Yield the shortest path from one object to each tensor that it reaches.

        Yields:
            The tensor's id, and the objects along the path, including start and end; None from time
            to time.
        """
        begin = id(start)
        if begin not in self._objects:
            return
        before: dict[int, int | None] = {begin: None}
        queue = deque([begin])
        while queue:
            key = queue.popleft()
            if key in self._targets:
                way: list[Any] = []
                at: int | None = key
                while at is not None:
                    way.append(self._objects[at])
                    at = before[at]
                yield key, way[::-1]
            for inner in self._onward.get(key, ()):
                if inner not in before:
                    before[inner] = key
                    queue.append(inner)
            self._taken += 1
            if not self._taken % STRIDE:
                yield None
                if self._taken > MAX_STEPS:
                    self.complete = False
                    return
