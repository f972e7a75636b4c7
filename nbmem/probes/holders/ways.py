"""From the tensors back to the places: the few objects that lead to them, and the shortest way."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from nbmem.probes.holders.reach import PIECE

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self._refers: dict[int, set[int]] = {}
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

    def _referents(self, reach: Reach, thing: Any) -> set[int]:
        """Ids of what an object refers to, asked once; of a large one those worth noting."""
        known = self._refers.get(id(thing))
        if known is None:
            found = reach.referents(thing)
            known = set(map(id, found)) if len(found) <= PIECE else reach.noted(found)
            self._refers[id(thing)] = known
        return known

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
