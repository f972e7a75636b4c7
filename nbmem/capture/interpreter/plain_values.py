"""Recognize by type the values that lead to no tensor.

These are numbers, texts, and tuples of those.

Most of a notebook's names are such values: IPython adds two for each cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress
from operator import is_not, itemgetter, not_
from typing import Any, TypeVar

from nbmem.capture.interpreter.notebook_cells import running_shell

K = TypeVar("K")

_ATOMS = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None))))
_FEW = 16
"""Items of a tuple that are checked."""
_ATTRIBUTES_AT: Any = type.__dict__["__dictoffset__"]
_derives = type.__subclasscheck__
_name_of, _value_of = itemgetter(0), itemgetter(1)


def may_hold_tensor(value: object) -> bool:
    """Return whether a value may lead to a tensor, judged by its type."""
    kind = type(value)
    if id(kind) in _ATOMS:
        return False
    if not _derives(tuple, kind) or _ATTRIBUTES_AT.__get__(kind):
        return True
    items: Any = value
    if tuple.__len__(items) >= _FEW:
        return True
    items = tuple.__iter__(items)
    return not _ATOMS.issuperset(map(id, map(type, items)))  # a shape, a data set's path and class


def entries_with_tensors(entries: Iterable[tuple[K, Any]]) -> list[tuple[K, Any]]:
    """Return the entries whose values may lead to a tensor.

    Atoms are skipped in C.
    """
    entries = list(entries)
    atoms = map(_ATOMS.__contains__, map(id, map(type, map(_value_of, entries))))
    return [entry for entry in compress(entries, map(not_, atoms)) if may_hold_tensor(entry[1])]


def user_names(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return a notebook's names and values, without IPython's own.

    IPython has a copy of the names that it added (`_5`, `_i5`, `In`): `%who` also finds the user's
    names like this. Its results are reached only by the name `Out`.
    """
    entries = list(namespace.items())
    shell: Any = running_shell()
    results = None if shell is None else namespace.get("Out")
    if results is None or shell.user_ns.get("Out") is not results:
        return entries
    hidden = map(shell.user_ns_hidden.get, map(_name_of, entries))
    kept = compress(entries, map(is_not, map(_value_of, entries), hidden))
    return [*kept, ("Out", results)]


def leading_names(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return a notebook's names whose values may lead to a tensor.

    IPython's own names are omitted.
    """
    return entries_with_tensors(user_names(namespace))
