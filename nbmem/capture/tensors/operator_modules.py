"""Find the module of an operator without parameters, such as a ReLU.

A graph shows which parameters an operator follows, and not which module called it. So the module is
the one beside theirs whose class has the operator's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbmem.capture.interpreter.object_members import name_of

if TYPE_CHECKING:
    from nbmem.capture.tensors.module_tree import ModuleTree

_AFFIXES = re.compile(r"^_?(?:native|cudnn|fused)_|_(?:with_indices|data)$|_")
_OTHER_NAMES = {"hardtanh": "relu6", "prelu_kernel": "prelu"}
"""The class of an operator whose name differs."""


def class_of_operator(operator: str) -> str:
    """Return the name, in lower case, of the class made for an operator."""
    return _OTHER_NAMES.get(operator, _AFFIXES.sub("", operator))


def operator_module(tree: ModuleTree, path: str, operator: str) -> str | None:
    """Return the path of the module that computes an operator, or None.

    It is the next such module in the same container, if no module with parameters comes before it.
    Else it is the only one there: a block may call its ReLU several times, a Sequential does not.
    After the last module of a container, the container itself is what the operator follows.

    Args:
        tree: The modules.
        path: Path of the module that the operator follows, with a dot before each part.
        operator: Name of the operator: `max_pool2d_with_indices`.
    """
    key = "operator", path, operator
    if key not in tree.remembered:
        tree.remembered[key] = _find(tree, path, operator)
    found: str | None = tree.remembered[key]
    return found


def _find(tree: ModuleTree, path: str, operator: str) -> str | None:
    wanted = class_of_operator(operator)
    kinds = {f".{tree.paths[id(one)]}": name_of(type(one)).lower() for one in tree.modules()}
    holders = [f".{place.path}" for place in tree.parameters]
    while path:
        parent = path.rpartition(".")[0]
        beside = [one for one in kinds if one != "." and one.rpartition(".")[0] == parent]
        after = beside[beside.index(path) + 1 :] if path in beside else []
        for one in after:
            if kinds[one] == wanted:
                return one
            if any(held.startswith(f"{one}.") for held in holders):
                break
        same = [one for one in beside if kinds[one] == wanted]
        if len(same) == 1 and kinds[parent or "."] != "sequential":
            return same[0]
        if after:
            return None
        path = parent
    return None
