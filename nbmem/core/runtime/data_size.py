"""Estimate the bytes of dataclasses, containers, texts and arrays."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

_SAMPLE = 64
"""Items of a long sequence that are measured as a sample."""
_SHARED = (type, Enum)
"""Objects that are shared with other data."""


def held_bytes(data: object) -> int:
    """Estimate the bytes of an object and its data; each object counts once.

    Only plain data is visited. The work is bounded by the shape of the data, and not by its length.
    """
    return _bytes(data, set())


def _bytes(obj: Any, seen: set[int]) -> int:
    if id(obj) in seen or isinstance(obj, _SHARED):
        return 0
    seen.add(id(obj))
    size = sys.getsizeof(obj)
    if type(obj).__module__ == "numpy":  # an array may be a view of another's data
        return max(size, int(getattr(obj, "nbytes", 0)))
    items = _items(obj)
    if len(items) <= 2 * _SAMPLE:
        return size + sum(_bytes(item, seen) for item in items)
    sample = items[:: len(items) // _SAMPLE]
    return size + sum(_bytes(item, seen) for item in sample) * len(items) // len(sample)


def _items(obj: Any) -> Sequence[Any]:
    if isinstance(obj, tuple | list):
        return obj
    if isinstance(obj, dict):  # the collector skips keys that are texts
        return [*obj, *obj.values()]
    return gc.get_referents(obj) if is_dataclass(obj) else ()
