"""Find the variables through which tensors are held, aliases included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from nbmem.core.session.holders import HeldStorage, Holder, HolderKind
from nbmem.core.session.variable_paths import parse_path

SMALL = 0.05
"""Part of the largest variable's bytes from which an alias is named."""
_KEYS = re.compile(r"[^\W\d]\w*(?:\[.*\])?|([^\W\d]\w*(?:\.[^\W\d]\w*)+)\[.*\]")
"""A variable with keys behind it, or an attribute with keys: `trainer.state_dict['model']`."""


class Variable(NamedTuple):
    """A variable or an attribute that one `del` removes.

    Attributes:
        name: It, as code.
        function: `main()` for a local of a function that runs; "" for a global.
    """

    name: str
    function: str = ""


class SharedTensors(NamedTuple):
    """Tensors that nothing but some variables holds.

    Attributes:
        variables: All of them, the one with the most bytes and the longest paths first.
        storages: The tensors that are freed where all variables are deleted.
    """

    variables: list[Variable]
    storages: list[HeldStorage]

    @property
    def code(self) -> str:
        """Code that deletes the variables: `del checkpoint, state_dict`."""
        return f"del {', '.join(variable.name for variable in self.variables)}"

    @property
    def listed(self) -> str:
        """The variables in a sentence: `checkpoint and state_dict`."""
        *others, last = (variable.name for variable in self.variables)
        return f"{', '.join(others)} and {last}" if others else last

    @property
    def functions(self) -> list[str]:
        """The functions whose locals they are; "" stands for globals."""
        return sorted({variable.function for variable in self.variables})


def variable_of(holder: Holder) -> Variable | None:
    """Return the variable that a holder's path begins with.

    None for a tensor that is an attribute, a graph, or anything that no `del` frees.
    """
    if holder.kind in (HolderKind.NAME, HolderKind.FRAME):
        return named_variable(holder.path)
    if holder.kind is HolderKind.MODULE:
        module = f"{holder.root.removeprefix('module ')}."
        found = named_variable(holder.path.removeprefix(module))
        return found and found._replace(name=module + found.name)
    return None


def named_variable(path: str) -> Variable | None:
    """Return the variable at the start of a path of keys, or None.

    For instance of `checkpoint['model']['0.weight']`, or of `local state_dict['bias'] of main()`.
    """
    found = parse_path(path)
    match = _KEYS.fullmatch(found.path)
    if match is None or found.by_graph or not found.can_be_deleted:
        return None
    return Variable(match[1] or found.variable, found.function)


def variables_of(held: HeldStorage) -> frozenset[Variable]:
    """Return the only holders of a storage, if all are variables, else none."""
    found = [variable_of(holder) for holder in held.holders]
    return frozenset() if None in found else frozenset(one for one in found if one is not None)


def shared_tensors(
    storages: Iterable[HeldStorage], wanted: Callable[[HeldStorage], bool]
) -> list[SharedTensors]:
    """Group the variables that hold the same tensors.

    Aliases and the variable of a loop over a dictionary are in one group. A variable with a small
    part of the bytes is left out, and so are the tensors that it holds.

    Args:
        storages: All storages with their holders.
        wanted: Returns whether a storage connects its variables.
    """
    of = {held: names for held in storages if (names := variables_of(held))}
    groups: list[frozenset[Variable]] = []
    for held, names in of.items():
        if wanted(held):
            joined = names.union(*(group for group in groups if group & names))
            groups = [*(group for group in groups if not group & names), joined]
    return [_without_small(group, of) for group in groups]


def _without_small(
    group: frozenset[Variable], of: dict[HeldStorage, frozenset[Variable]]
) -> SharedTensors:
    found = [held for held, names in of.items() if names <= group]
    size = {one: sum(held.size for held in found if one in of[held]) for one in group}
    path = {
        one: max(len(h.path) for held in found for h in held.holders if variable_of(h) == one)
        for one in group
    }
    named = {one for one in group if size[one] >= SMALL * max(size.values())}
    order = sorted(named, key=lambda one: (-size[one], -path[one], one))
    return SharedTensors(order, [held for held in found if of[held] <= named])


def item_of(held: Iterable[HeldStorage], place: str) -> str | None:
    """Return the one other name for an item of a list, or for its graph.

    It is the variable that the user's loop puts there. None if there is not exactly one.

    Args:
        held: The storages at the end.
        place: The list, as code.
    """
    names: set[str] = set()
    for one in held:
        paths = [way.path.rpartition(" ")[2] for way in one.holders]
        if any(path.startswith(f"{place}[") for path in paths):
            names.update(filter(str.isidentifier, paths))
    return names.pop() if len(names) == 1 else None
