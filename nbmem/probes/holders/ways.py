"""From the tensors back to the places: the few objects that lead to them, and the shortest way."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from nbmem.probes.holders.reach import PIECE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nbmem.probes.holders.reach import Reach


class Ways:
    """The part of what was reached that leads to some tensors.

    Args:
        reach: What was reached.
        targets: Ids of the tensors.
    """

    def __init__(self, reach: Reach, targets: set[int]) -> None:
        self._targets = targets
        self._objects: dict[int, Any] = {key: reach.tensors[key] for key in targets}
        self._onward: dict[int, list[int]] = defaultdict(list)
        self._large: dict[int, set[int]] = {}
        level = targets
        while level:
            level = self._one_level_back(reach, level)

    def _one_level_back(self, reach: Reach, level: set[int]) -> set[int]:
        """Find the objects that refer to some others; returns those that are new."""
        wanted: dict[int, set[int]] = defaultdict(set)
        for key in level:
            for index in reach.pieces_of(key):
                wanted[index].add(key)
        new = set()
        for index, keys in wanted.items():
            for thing in reach.piece(index):
                hits = keys.intersection(self._referents(reach, thing))
                if hits:
                    source = id(thing)
                    self._onward[source].extend(hits)
                    if source not in self._objects:
                        self._objects[source] = thing
                        new.add(source)
        return new

    def _referents(self, reach: Reach, thing: Any) -> Iterable[int]:
        """Ids of what an object refers to; of a large one only those worth noting, kept."""
        large = self._large.get(id(thing))
        if large is not None:
            return large
        found = reach.referents(thing)
        if len(found) <= PIECE:
            return map(id, found)
        large = self._large[id(thing)] = reach.noted(found)
        return large

    def from_start(self, start: object) -> Iterator[tuple[int, list[Any]]]:
        """The shortest way from one object to each tensor that it leads to.

        Yields:
            The tensor's id, and the objects along the way, both ends included.
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
