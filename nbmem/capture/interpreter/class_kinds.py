"""Classify classes for the heap walk without calling their metaclass.

A metaclass may be the user's, with its own `__eq__`, `__hash__` and `__getattribute__`. So classes
are distinguished by `id()`, and their kinds follow from their real bases. Code that stores such an
id must retain the class, or the id could refer to another one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from types import ModuleType
from typing import Any

from nbmem.capture.interpreter.object_members import is_a, mro_of, namespace_of

FOREIGN = ("IPython", "ipykernel", "traitlets", "zmq", "tornado", "nbmem", "_pytest", "pluggy")
"""Packages whose objects are not followed: they refer to the whole notebook, or are nbmem's own."""


class Kind(IntEnum):
    """The kind of a class: it decides how its objects are read."""

    PLAIN = 0
    SKIPPED = 1
    TENSOR = 2
    STORAGE = 3
    NODE = 4
    ARRAY = 5


class Kinds:
    """A cache of the kinds of classes.

    Attributes:
        known: The kind by the class's id.
    """

    def __init__(self, torch: Any) -> None:
        self.known: dict[int, Kind] = {}
        self._torch = torch
        self._array = getattr(sys.modules.get("numpy"), "ndarray", None)
        self._classes: list[type] = []

    def of(self, kind: type) -> Kind:
        """Return the kind of a class."""
        found = self.known.get(id(kind))
        if found is None:
            self._classes.append(kind)
            found = self.known[id(kind)] = self._find(kind)
        return found

    def among(self, objects: Sequence[Any]) -> set[Kind]:
        """Return the kinds of many objects."""
        found = set(map(id, map(type, objects)))
        if not self.known.keys() >= found:
            for obj in objects:
                self.of(type(obj))
        return {self.known[key] for key in found}

    def _find(self, kind: type) -> Kind:
        if is_a(kind, type) or is_a(kind, ModuleType):
            return Kind.SKIPPED
        if is_a(kind, self._torch.Tensor):
            return Kind.TENSOR
        if kind is self._torch.UntypedStorage:
            return Kind.STORAGE
        module = namespace_of(kind).get("__module__")
        if type(module) is str and module.partition(".")[0] in FOREIGN:
            return Kind.SKIPPED
        if kind is self._array:
            return Kind.ARRAY
        return Kind.NODE if is_node(kind) else Kind.PLAIN


def is_node(kind: type) -> bool:
    """Return True if a class is one of torch's graph nodes."""
    return any(
        "next_functions" in space and "_sequence_nr" in space
        for space in map(namespace_of, mro_of(kind))
    )
