"""Storages saved for backward, in eager mode and in the compiled plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol


class Reference(Protocol):
    """A weak reference to a storage; `cdata` identifies it while this lives."""

    cdata: int

    def expired(self) -> bool:
        """Return whether the storage is freed."""
        ...


class SavedStorages:
    """Storages kept for backward across regions, in eager and compiled mode.

    The program releases its own references at the same time in both modes. What eager mode alone
    retains is freed on the card by then. What the plan alone retains is still on the card. Whether
    the program holds it, too, is unknown.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Reference, int]] = {}
        self._kept: Counter[int] = Counter()
        self._planned: Counter[int] = Counter()
        self._passed: set[int] = set()

    def hold(
        self, kept: Iterable[tuple[Reference, int]], planned: Iterable[tuple[Reference, int]]
    ) -> Callable[[], None]:
        """Keep storages for one backward.

        Args:
            kept: Storages that eager mode would retain, with their bytes.
            planned: Storages that the plan retains.

        Returns:
            A function that releases them.
        """
        counts = []
        for found, counter in ((kept, self._kept), (planned, self._planned)):
            sizes = {reference.cdata: (reference, nbytes) for reference, nbytes in found}
            self._sizes = sizes | self._sizes
            counter.update(sizes.keys())
            counts.append((counter, sizes.keys()))

        def end() -> None:
            for counter, keys in counts:
                counter.subtract(keys)
            for key in [key for key in self._sizes if not (self._kept[key] or self._planned[key])]:
                del self._sizes[key], self._kept[key], self._planned[key]
                self._passed.discard(key)

        return end

    def mark_used(self, references: Iterable[Reference]) -> None:
        """Record that another region has used these storages."""
        self._passed.update(reference.cdata for reference in references)

    @property
    def eager_only_bytes(self) -> int:
        """Bytes freed on the card that eager mode would still keep."""
        return sum(n for key, (one, n) in self._sizes.items() if self._kept[key] and one.expired())

    @property
    def uncertain_bytes(self) -> int:
        """Bytes on the card of unknown state in eager mode.

        They would be live only if the program still holds them.
        """
        return sum(
            nbytes
            for key, (one, nbytes) in self._sizes.items()
            if key in self._passed and not self._kept[key] and not one.expired()
        )
