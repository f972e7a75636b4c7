"""The roll on which what is looked at just now is written, wherever it is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.capture.tensors.sequence_numbers import made_at

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.capture.tensors.storage_registry import Roll

_followed: list[Roll] = []
"""The roll on which what is looked at just now is written, if any."""


def followed() -> Roll | None:
    """The roll that is kept at this moment; it may be over since the hook that runs was called."""
    return _followed[-1] if _followed and not _followed[-1].over else None


class _Following:
    """While it is entered, a roll is written on; a class, for it is entered at each turn."""

    __slots__ = ("_roll",)

    def __init__(self, roll: Roll | None) -> None:
        self._roll = roll

    def __enter__(self) -> None:
        if self._roll is not None:
            _followed.append(self._roll)

    def __exit__(self, *_raised: object) -> None:
        if self._roll is not None:
            _followed.pop()


def following(roll: Roll | None) -> AbstractContextManager[None]:
    """Write on a roll what is looked at meanwhile; of CUDA's cards with None."""
    return _Following(roll)


class there_with:  # noqa: N801 - a context manager, read as the function that it would be
    """What is met meanwhile was there when a graph's node was made: it has it, or has made it.

    A class, for it is entered at each node and each tensor of a graph.

    Args:
        node: The node; None leaves what is met where it is met.
    """

    __slots__ = ("_before", "_node", "_roll")

    def __init__(self, node: Any) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._roll = roll = None if self._node is None else followed()
        mark = None if roll is None else roll.numbers.mark_behind(made_at(self._node))
        if roll is None or mark is None:
            self._roll = None
            return
        self._before = roll.since
        roll.since = mark if roll.since is None else min(roll.since, mark)

    def __exit__(self, *_raised: object) -> None:
        if self._roll is not None:
            self._roll.since = self._before
