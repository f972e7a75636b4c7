"""Cache of recently used results, in bounded memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class RecentAnswers(Generic[V]):
    """A dictionary that drops entries that were not used recently.

    It has two halves. When the newer half is full, the older half is dropped, and the newer one
    takes its place. Entries found in the older half move to the newer one. So a lookup costs one or
    two dictionary lookups, and entries in use are never dropped.

    Args:
        most: Maximum weight of both halves together.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._weight = 0
        self._newer: dict[Hashable, tuple[V, int]] = {}
        self._older: dict[Hashable, tuple[V, int]] = {}

    def __len__(self) -> int:
        return len(self._newer.keys() | self._older.keys())

    def get(self, key: Hashable) -> V | None:
        """Return the result that is cached for a key, or None."""
        found = self._newer.get(key)
        if found is None:
            found = self._older.get(key)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def put(self, key: Hashable, answer: V, weight: int = 1) -> None:
        """Cache a result; `weight` is its relative size in memory."""
        if self._weight + weight > self._half:
            self._older, self._newer, self._weight = self._newer, {}, 0
        self._newer[key] = answer, weight
        self._weight += weight
