"""Detect weights that were changed by hand, or given gradients.

torch counts in-place changes of a tensor for autograd. So `p.add_(...)` and `torch._foreach_add_`
under no_grad() are detected although they allocate nothing. A change of `p.data` is not: that is
another tensor on the same memory, with a counter of its own. nbmem counts those changes.
https://docs.pytorch.org/docs/2.13/notes/autograd.html#in-place-correctness-checks

A program that computes gradients with torch.func, or clips those of every sample, assigns `p.grad`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from nbmem.capture.hooks.data_writes import data_writes_of
from nbmem.capture.tensors.tensor_storages import data_of
from nbmem.capture.tensors.tensors import address_of, gradient_of, version_of
from nbmem.capture.torch_cuda import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    Place = int | tuple[int, int, int] | None
    """Address of a gradient's data, or its storage; None without one."""
    Changes = tuple[int, int] | None
    """How often a tensor was changed directly and through its data; None if not counted."""

ASKED = 8
"""Weights that are checked, which takes a few microseconds."""


class WeightWatch:
    """A sample of one loop's weights, as its last backward left them.

    The weights are not retained.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[weakref.ref[Any], Changes]] = []
        self._gradients: list[tuple[weakref.ref[Any], Place]] = []

    def record_versions(self, weights: Iterable[Any]) -> None:
        """Store how often each weight was changed, and where its gradient is."""
        found = [(weakref.ref(w), _changes(w), _gradient(w)) for w in weights]
        self._seen = [(ref, version) for ref, version, _ in found if version is not None]
        self._gradients = [(ref, place) for ref, _, place in found]

    def changed(self) -> bool:
        """Return True if most weights were changed since they were stored.

        A change is reported once.
        """
        now = [(ref(), version) for ref, version in self._seen]
        changed = [w is not None and _changes(w) != version for w, version in now]
        self._seen = [] if any(changed) else self._seen
        return 2 * sum(changed) > len(changed)

    def given(self) -> bool:
        """Return True if a gradient was replaced since they were stored.

        Also returns True if no weight is stored.
        """
        now = [(ref(), place) for ref, place in self._gradients]
        return not now or any(w is not None and _gradient(w) != place for w, place in now)

    def forget(self) -> None:
        """Stop watching for changes, after a step of torch's own optimizer."""
        self._seen = []


def _changes(weight: Any) -> Changes:
    version = version_of(weight)
    return None if version is None else (version, data_writes_of(weight))


def _gradient(weight: Any) -> Place:
    gradient = gradient_of(weight)
    if gradient is None:
        return None
    return data_of(loaded_torch(), gradient) or address_of(gradient)
