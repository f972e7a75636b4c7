"""Hold the active storage registry, to which probes add storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.capture.tensors.sequence_numbers import made_at

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.capture.tensors.storage_registry import Roll

_followed: list[Roll] = []
"""The roll on which what is looked at just now is written, if any."""


def followed() -> Roll | None:
    """Return the active storage registry, or None.

    None also if it has ended since the running hook was called.
    """
    return _followed[-1] if _followed and not _followed[-1].over else None


class _Following:
    """A context manager that makes a storage registry the active one.

    A class, as it is entered at each hook event.
    """

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
    """Return a context in which storages go to this registry.

    With None, as for CUDA devices, it changes nothing.
    """
    return _Following(roll)


class there_with:  # noqa: N801 - a context manager, read as the function that it would be
    """A context that dates storages back to a graph node's creation.

    Storages that are read inside existed when the node was made: the node has saved them or has
    made them. A class, as it is entered at each node and each tensor of a graph.

    Args:
        node: The node; with None storages are dated by the moment of the read.
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
