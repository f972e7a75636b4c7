"""Where a program's variable gets its value, and how another one is put there."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Binding:
    """A variable of a cell or script.

    Attributes:
        name: The variable.
        value: What it is in the program as it stands.
        line: Line of its assignment; None where it comes from the namespace.
    """

    name: str
    value: int
    line: int | None


def find(name: str, source: str, namespace: Mapping[str, Any] | None = None) -> Binding:
    """How a variable gets its value.

    Args:
        name: The variable.
        source: The program, in plain Python.
        namespace: Where it comes from if the program does not assign it; None: nowhere else.

    Raises:
        UsageError: It is assigned in a way that cannot be replaced, or not at all.
    """
    tree = ast.parse(source)
    lines = _bound(tree, name)
    if not lines:
        return _from(namespace, name, tree)
    if len(lines) > 1:
        raise UsageError(
            f"{name} is assigned more than once (lines {', '.join(map(str, lines))}), so it is not "
            "clear which of them to vary. Assign it once, as a number, and derive the others."
        )
    found = [s for s in tree.body if _assigns(s, name)]
    value = _number(found[0]) if found else None
    if value is None:
        raise UsageError(
            f"{name} is not assigned as a whole number at the top level (line {lines[0]}), so no "
            f"other value can be put there. Write it as `{name} = 32`, on a line of its own."
        )
    return Binding(name, value, lines[0])


def compiled(source: str, file: str, binding: Binding | None, value: int | None) -> Any:
    """The program's code, with another value in the variable's assignment."""
    tree = ast.parse(source, file)
    if binding is not None and binding.line is not None and value is not None:
        for statement in tree.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _assigns(
                statement, binding.name
            ):
                old = statement.value
                assert old is not None  # noqa: S101 - find() read a number there
                statement.value = ast.copy_location(ast.Constant(value), old)
    return compile(ast.fix_missing_locations(tree), file, "exec")


def names_of(source: str) -> list[str]:
    """Every name that a program mentions, in their order."""
    found = (n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name))
    return list(dict.fromkeys(found))


def _from(namespace: Mapping[str, Any] | None, name: str, tree: ast.Module) -> Binding:
    used = any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(tree))
    value = None if namespace is None else namespace.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        where = "the script" if namespace is None else "the cell"
        also = "" if namespace is None else " and the notebook has no whole number of that name"
        raise UsageError(
            f"{name} is not assigned in {where}{also}, so there is nothing to vary. "
            f"Put `{name} = 32` on a line of its own in {where}, and use {name} below it."
        )
    if not used:
        raise UsageError(
            f"{name} is {value} in the notebook, but the cell does not mention it, so varying it "
            "would change nothing. Make what depends on it (a batch, a DataLoader) inside the cell."
        )
    return Binding(name, value, None)


def _bound(tree: ast.Module, name: str) -> list[int]:
    """Lines where the module's own scope gives the name a value."""
    lines: list[int] = []
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    queue: list[ast.AST] = list(tree.body)
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            lines.append(node.lineno)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            lines += [node.lineno] if node.name == name else []
        elif isinstance(node, ast.alias) and (node.asname or node.name) == name:
            lines.append(node.lineno)
        if not isinstance(node, inner):
            queue += ast.iter_child_nodes(node)
    return sorted(lines)


def _assigns(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return False
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def _number(statement: ast.stmt) -> int | None:
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return value.value
    return None
