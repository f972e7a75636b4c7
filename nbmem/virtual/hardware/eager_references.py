"""What lasts from one part of a followed run to another, and who keeps it in either mode."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Reference(Protocol):
    """A storage that is not kept by being known; `cdata` names it as long as this lives."""

    cdata: int

    def expired(self) -> bool:
        """Whether it is gone."""
        ...


class Lasting:
    """What one part leaves and another goes on with: whose backward keeps it, in either mode.

    The program lets go of it in both at once. What eager mode alone keeps is gone from the card by
    then; what the plan alone keeps is there, with nothing to tell whether the program has it, too.
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
            kept: Those that eager mode would keep, with their bytes.
            planned: Those that the plan keeps.

        Returns:
            What ends it.
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

    def passed(self, references: Iterable[Reference]) -> None:
        """Another part has gone on with these."""
        self._passed.update(reference.cdata for reference in references)

    @property
    def more(self) -> int:
        """Bytes that would live beyond those of the card."""
        return sum(n for key, (one, n) in self._sizes.items() if self._kept[key] and one.expired())

    @property
    def unsure(self) -> int:
        """Bytes of the card that would live only if the program has not let go of them."""
        return sum(
            nbytes
            for key, (one, nbytes) in self._sizes.items()
            if key in self._passed and not self._kept[key] and not one.expired()
        )
