"""Find tensors reachable from values, with their paths.

A path is written as a user would type it, and the time is bounded. Containers, attributes, slots
and closures are read as they are stored: no property, `__getattr__` or `__iter__` of a user's class
runs. Deeper objects are found at the end of a recording, by the heap walk (capture/heap/).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from nbmem.capture.interpreter.class_kinds import FOREIGN
from nbmem.capture.interpreter.notebook_cells import running_shell
from nbmem.capture.interpreter.object_members import (
    Members,
    entries_of,
    first_of,
    is_a,
    is_writable,
    namespace_of,
)
from nbmem.capture.interpreter.plain_values import entries_with_tensors
from nbmem.capture.tensors.modules import is_module, is_optimizer, is_tensor
from nbmem.core.session.tensor_names import as_source

MAX_ITEMS = 10_000
"""Values of a notebook that are visited, about 10 ms."""
MAX_DEPTH = 4
"""Depth to which they are visited: `data._store._mapping['x']`, a leaf, is 3."""
MAX_OF_ONE = 4_096
"""Items of one container that are visited."""
_AT_A_GLANCE = 16
"""Numbers and texts that are skipped in the time of visiting one value."""
_SEQUENCES: tuple[Any, ...] = (list, tuple, deque)
_PARTS_OF_MODULE = frozenset(("_parameters", "_buffers", "_modules"))

Named = tuple[str, Any]


class Budget:
    """A number of values to visit, in one walk or several.

    Args:
        left: Values left to visit; plain numbers and texts in a container count a sixteenth each.
    """

    def __init__(self, left: int = MAX_ITEMS) -> None:
        self.left = left

    def shares(self, count: int) -> Iterator[Budget]:
        """Yield a budget for each of `count` walks, one after another.

        Half of the budget is reserved in equal parts for later walks. A walk's unused part goes to
        the next ones.
        """
        kept = self.left // (2 * max(count, 1))
        for others in range(count - 1, -1, -1):
            given = self.left - others * kept
            part = Budget(given)
            yield part
            self.left -= given - part.left


def reachable_tensors(
    named: Iterable[Named],
    budget: Budget | None = None,
    met: Callable[[str, Any], None] | None = None,
    module: Callable[[str, Any], None] | None = None,
) -> Iterator[Named]:
    """Yield tensors reachable from values, shortest paths first.

    Modules' parameters and buffers and the contents of optimizers are omitted, because they have
    names of their own.

    Args:
        named: Names and values.
        budget: How many values are visited; None for `MAX_ITEMS`.
        met: Called with path and object for each that has attributes; must not retain it.
        module: Called with path and module for each module found; must not retain it.
    """
    budget = budget or Budget()
    members = Members()
    queue = deque((name, value, 0) for name, value in entries_with_tensors(named))
    entered: dict[int, Any] = {}  # retained, or an id could refer to another object
    while queue and budget.left > 0:
        budget.left -= 1
        name, value, depth = queue.popleft()
        if is_tensor(value):
            yield as_source(name), value
        elif depth < MAX_DEPTH and id(value) not in entered:
            entered[id(value)] = value
            inside = _items(name, value, budget)
            if inside is None:
                inside = _attributes(name, value, members)
                report = module if is_module(value) else met
                if report is not None:
                    report(name, value)
            queue.extend((path, inner, depth + 1) for path, inner in inside)


def _items(name: str, value: Any, budget: Budget) -> list[Named] | None:
    """List what a container, function or method leads to; None for others."""
    kind = type(value)
    for base in _SEQUENCES:
        if is_a(kind, base):
            budget.left -= min(base.__len__(value), MAX_OF_ONE) // _AT_A_GLANCE
            inner = enumerate(first_of(partial(base.__iter__, value), MAX_OF_ONE))
            return [(f"{name}[{i}]", v) for i, v in entries_with_tensors(inner)]
    if kind is dict and _is_globals(value):
        return []
    if is_a(kind, dict):
        budget.left -= min(dict.__len__(value), MAX_OF_ONE) // _AT_A_GLANCE
        pairs = entries_with_tensors(entries_of(value, MAX_OF_ONE))
        return [(f"{name}[{k!r}]" if is_plain_key(k) else f"{name}[...]", v) for k, v in pairs]
    if kind is FunctionType:
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        return [(f"{n} closed over by {name}", c) for n, cell in cells for c in _content(cell)]
    return [(f"{name}.__self__", value.__self__)] if kind is MethodType else None


def _is_globals(kept: dict[Any, Any]) -> bool:
    """Return True for the namespace of a module or notebook.

    Its names are paths of their own.

    A Triton kernel has its function's namespace as an attribute.
    """
    return "__builtins__" in kept


def _attributes(name: str, value: Any, members: Members) -> list[Named]:
    kind = type(value)
    if is_a(kind, type) or is_a(kind, ModuleType) or is_optimizer(value):
        return []
    if value is running_shell():  # Colab's own class of it is in no FOREIGN package
        return []
    module = namespace_of(kind).get("__module__")
    if type(module) is str and module.partition(".")[0] in FOREIGN:
        return []
    own, slots = members.of(value)
    parts = _PARTS_OF_MODULE if is_module(value) else ()
    found = [
        (f"{name}.{key}", inner)
        for key, inner in entries_with_tensors(entries_of(own, MAX_OF_ONE))
        if type(key) is str and key not in parts
    ]
    found += [(f"{name}.{key}", inner) for key, inner in slots]
    return found


def _content(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # an empty cell
        return []


def is_plain_key(key: object) -> bool:
    """Return True if a key can be shown in a path without running code."""
    kind = type(key)
    return kind is str or kind is bool or (kind is int and is_writable(key))
