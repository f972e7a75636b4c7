"""Estimate the bytes of dataclasses, containers, texts and arrays."""

from __future__ import annotations

import gc
import sys
from dataclasses import is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAMPLE = 64
"""Items of a long sequence that are measured as a sample."""
_SHARED = (type, Enum)
"""Objects that are shared with other data."""


def held_bytes(data: object) -> int:
    """Estimate the bytes of an object and its data; each object counts once.

    Only plain data is visited. The work is bounded by the shape of the data, and not by its length.
    """
    return _bytes(data, set())


def _bytes(thing: Any, seen: set[int]) -> int:
    if id(thing) in seen or isinstance(thing, _SHARED):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if type(thing).__module__ == "numpy":  # an array may be a view of another's data
        return max(size, int(getattr(thing, "nbytes", 0)))
    items = _items(thing)
    if len(items) <= 2 * _SAMPLE:
        return size + sum(_bytes(item, seen) for item in items)
    sample = items[:: len(items) // _SAMPLE]
    return size + sum(_bytes(item, seen) for item in sample) * len(items) // len(sample)


def _items(thing: Any) -> Sequence[Any]:
    if isinstance(thing, tuple | list):
        return thing
    if isinstance(thing, dict):  # the collector skips keys that are texts
        return [*thing, *thing.values()]
    return gc.get_referents(thing) if is_dataclass(thing) else ()
