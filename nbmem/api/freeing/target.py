"""An object that an action frees: its name, its cut and its release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmem.capture.heap import Cut, reachable_storages

if TYPE_CHECKING:
    from nbmem.capture.interpreter.roots import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An object that can be freed.

    Attributes:
        what: The user's text: `checkpoint['model']`.
        cut: What the heap walk leaves out, to predict what the release frees.
        reached: Storages reachable from it, as (CUDA ordinal, address), whether held by others or
            not.
        release: Frees it; returns sentences on other things that the user should know.
        garbage: Storages that nothing reaches any more, and that the release collects.
    """

    what: str
    cut: Cut
    reached: set[tuple[int, int]]
    release: Callable[[], list[str]]
    garbage: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of_places(
        cls,
        what: str,
        holds: Callable[[Place], bool],
        namespace: Mapping[str, Any],
        release: Callable[[], list[str]],
    ) -> Target:
        """Return the target of everything that some places of the heap hold."""
        others = Cut(place=lambda place: not holds(place))
        reached = reachable_storages(namespace, others)
        return cls(what=what, cut=Cut(place=holds), reached=reached, release=release)
