"""Find batch sizes among a program's variables and settings objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from nbmem.capture.interpreter.object_members import (
    attributes_of,
    entries_of,
    first_of,
    is_a,
    namespace_of,
)
from nbmem.capture.interpreter.plain_values import user_names

MAX_NAMES = 10_000
"""Names of the notebook, or of one object, that are read."""
MAX_FOUND = 64
_OF_SETTINGS = ("__main__", "argparse", "types")
"""Modules of classes whose objects count as settings: the user's own, and Python's plain ones. A
DataLoader also has a `batch_size`, but it cannot be changed."""


def batch_sizes(namespace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List integers that are named like a batch size.

    Each has its `name`, as a user would type it, and its `value`.
    """
    found = islice(_batches(namespace), MAX_FOUND)
    return [{"name": name, "value": value} for name, value in found]


def _batches(namespace: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in user_names(namespace)[:MAX_NAMES]:
        if type(name) is not str:
            continue
        if _is_batch(name, value):
            yield name, value
        for key, inner, way in _settings(value):
            if type(key) is str and _is_batch(key, inner):
                yield f"{name}{way.format(key)}", inner


def _settings(value: Any) -> list[tuple[Any, Any, str]]:
    """List the entries of a dictionary or settings object.

    Each has its key, its value, and a format string for the path to it. Empty for any other object.
    """
    kind = type(value)
    if kind is dict:
        return [(*item, "['{}']") for item in entries_of(value, MAX_NAMES)]
    if is_a(kind, type):  # `class Config: batch_size = 64`
        inside = namespace_of(value)
        is_own = inside.get("__module__") == "__main__"
    else:
        inside = attributes_of(value) or {}
        is_own = namespace_of(kind).get("__module__") in _OF_SETTINGS
    return [(*item, ".{}") for item in first_of(inside.items, MAX_NAMES)] if is_own else []


def _is_batch(name: str, value: object) -> bool:
    return type(value) is int and value > 0 and ("batch" in name.lower() or name.lower() == "bs")
