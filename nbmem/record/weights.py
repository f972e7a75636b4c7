"""Whether weights were changed in place: what shows an update that is written by hand.

torch counts what is done to a tensor in place, for autograd's sake, so `p.add_(...)` and
`torch._foreach_add_` under no_grad() show though they allocate nothing. A change of `p.data` does
not: that is another tensor on the same memory, which counts for itself.
https://docs.pytorch.org/docs/2.13/notes/autograd.html#in-place-correctness-checks
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from nbmem.probes.tensors import version_of

if TYPE_CHECKING:
    from collections.abc import Iterable

ASKED = 8
"""Weights that are asked, which takes a few microseconds."""


class Weights:
    """A few weights of one loop, not held, as they were when its last backward was over."""

    def __init__(self) -> None:
        self._seen: list[tuple[weakref.ref[Any], int]] = []

    def look(self, weights: Iterable[Any]) -> None:
        """See how often each was changed until now."""
        found = ((weight, version_of(weight)) for weight in weights)
        self._seen = [(weakref.ref(w), version) for w, version in found if version is not None]

    def changed(self) -> bool:
        """Whether most were changed since; once said, it is not said again."""
        now = [(ref(), version) for ref, version in self._seen]
        changed = [w is not None and version_of(w) != version for w, version in now]
        self._seen = [] if any(changed) else self._seen
        return 2 * sum(changed) > len(changed)

    def forget(self) -> None:
        """Ask no more: an optimizer of torch's has told its step."""
        self._seen = []
