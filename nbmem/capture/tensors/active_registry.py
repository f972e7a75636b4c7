"""Hold the active storage registry, to which probes add storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.capture.tensors.sequence_numbers import sequence_nr_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from nbmem.capture.tensors.storage_registry import StorageRegistry

_followed: list[StorageRegistry] = []
"""The registries to which observed storages are added; the last one is active."""


def active_registry() -> StorageRegistry | None:
    """Return the active storage registry, or None.

    Also None if it has ended since the running hook was called.
    """
    return _followed[-1] if _followed and not _followed[-1].over else None


class _Following:
    """A context manager that makes a storage registry the active one.

    It is a class, because it is entered at each hook event.
    """

    __slots__ = ("_registry",)

    def __init__(self, registry: StorageRegistry | None) -> None:
        self._registry = registry

    def __enter__(self) -> None:
        if self._registry is not None:
            _followed.append(self._registry)

    def __exit__(self, *_raised: object) -> None:
        if self._registry is not None:
            _followed.pop()


def activate_registry(registry: StorageRegistry | None) -> AbstractContextManager[None]:
    """Return a context in which storages go to this registry.

    With None, as for CUDA devices, it changes nothing.
    """
    return _Following(registry)


class existing_since:  # noqa: N801 - a context manager, read as the function that it would be
    """A context that dates storages back to a graph node's creation.

    Storages that are read inside existed when the node was created: the node has saved or computed
    them. It is a class, because it is entered at each node and each tensor of a graph.

    Args:
        node: The node; with None storages are dated to the moment of the read.
    """

    __slots__ = ("_before", "_node", "_registry")

    def __init__(self, node: Any) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._registry = registry = None if self._node is None else active_registry()
        sample = (
            None
            if registry is None
            else registry.numbers.first_sample_after(sequence_nr_of(self._node))
        )
        if registry is None or sample is None:
            self._registry = None
            return
        self._before = registry.since
        registry.since = sample if registry.since is None else min(registry.since, sample)

    def __exit__(self, *_raised: object) -> None:
        if self._registry is not None:
            self._registry.since = self._before
