"""Detect weights that were changed by hand, or given gradients.

torch counts in-place changes of a tensor for autograd. So `p.add_(...)` and `torch._foreach_add_`
under no_grad() are detected although they allocate nothing. A change of `p.data` is not: that is
another tensor on the same memory, with a counter of its own. nbmem counts those changes.
https://docs.pytorch.org/docs/2.13/notes/autograd.html#in-place-correctness-checks

A program that computes gradients with torch.func, or clips those of every sample, assigns `p.grad`.

Reading gradients (a norm, a log) allocates as an update does. So weights that have gradients and
are certainly unchanged show that there was none.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbmem.capture.hooks.data_writes import data_lookups, data_writes_of
from nbmem.capture.tensors.tensor_storages import data_of
from nbmem.capture.tensors.tensors import address_of, gradient_of, version_of
from nbmem.capture.torch_cuda import loaded_torch

if TYPE_CHECKING:
    Place = int | tuple[int, int, int] | None
    """Address of a tensor's data, or its storage; None without one."""
    Changes = tuple[int, int] | None
    """How often a tensor was changed directly and through its data; None if not counted."""

SAMPLED = 8
"""Weights that are checked, which takes a few microseconds."""


class WeightWatch:
    """A sample of one loop's weights, as its last backward left them.

    The weights are not retained.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[weakref.ref[Any], Changes]] = []
        self._gradients: list[tuple[weakref.ref[Any], Place]] = []
        self._places: list[tuple[weakref.ref[Any], Place]] = []
        self._lookups = 0

    def record_versions(self, weights: Iterable[Any]) -> None:
        """Store how often each weight was changed, and where its gradient is."""
        found = [(weakref.ref(w), _changes(w), _gradient(w)) for w in weights]
        self._seen = [(ref, version) for ref, version, _ in found if version is not None]
        self._gradients = [(ref, place) for ref, _, place in found]
        self._places = [(ref, _place(ref())) for ref, _, _ in found]
        self._lookups = data_lookups()

    def changed(self) -> bool:
        """Return True if most weights were changed since they were stored.

        A change is reported once.
        """
        now = [(ref(), version) for ref, version in self._seen]
        changed = [w is not None and _changes(w) != version for w, version in now]
        self._seen = [] if any(changed) else self._seen
        return 2 * sum(changed) > len(changed)

    def unchanged(self) -> bool:
        """Return True if weights with gradients were certainly not changed since.

        False if nothing is known of them, or if `p.data` was looked up, through which a later
        change is not seen.
        """
        if not self._seen or self._lookups != data_lookups():
            return False
        if all(place is None for _, place in self._gradients):
            return False  # gradients are not in `p.grad`, so updates may make new weights
        changed = any(w is None or _changes(w) != v for w, v in ((r(), v) for r, v in self._seen))
        return not changed and all(_place(ref()) == place for ref, place in self._places)

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
    return _place(gradient_of(weight))


def _place(tensor: Any) -> Place:
    return None if tensor is None else data_of(loaded_torch(), tensor) or address_of(tensor)
