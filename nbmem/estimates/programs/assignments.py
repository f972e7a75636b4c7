"""Find and rewrite assignments of a variable in a program's syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nbmem.core.errors import UsageError

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_UNSURE = (
    ast.If, ast.While, ast.Try, ast.TryStar, ast.Match, ast.AsyncFor, ast.AsyncWith,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.AugAssign, ast.IfExp, ast.BoolOp,
)  # fmt: skip
"""Nodes in which an assignment may not run, or is of another scope, or reads first."""
_TARGETS = (ast.Name, ast.Attribute, ast.Subscript)


@dataclass(slots=True)
class Assignment:
    """A place in a program that gives a variable its value.

    Attributes:
        line: Its line in the program.
        now: The expression that is assigned; None where there is none (a loop's name).
        owner: The node or the list that holds the expression.
        key: Its name or number in the owner.
    """

    line: int
    now: ast.expr | None = None
    owner: Any = None
    key: Any = None

    def number(self) -> int | None:
        """Return the integer literal that is assigned, or None."""
        literal = self.now
        if isinstance(literal, ast.Constant) and type(literal.value) is int:
            return literal.value
        return None

    def put(self, expression: ast.expr) -> None:
        """Replace the assigned expression."""
        if isinstance(self.owner, list):
            self.owner[self.key] = expression
        else:
            setattr(self.owner, self.key, expression)


def target(name: str) -> ast.expr:
    """Parse a variable's name; quotes in brackets may be left out.

    Raises:
        UsageError: It is none.
    """
    try:
        found = ast.parse(name.strip(), mode="eval").body
    except SyntaxError:
        found = None
    step: Any = found
    while isinstance(step, (ast.Attribute, ast.Subscript)):
        if isinstance(step, ast.Subscript) and isinstance(step.slice, ast.Name):
            step.slice = ast.Constant(step.slice.id)
        if isinstance(step, ast.Subscript) and not isinstance(step.slice, ast.Constant):
            break
        step = step.value
    if found is None or not isinstance(step, ast.Name):
        number = name if name.strip().isdecimal() else "32"
        raise UsageError(
            f"{name} is not the name of a variable: write batch, cfg.batch_size or "
            f"config['batch_size']. A number that stands in the program needs a name first: "
            f"`batch = {number}` on a line of its own."
        )
    return found


def root(wanted: ast.expr) -> str:
    """Return the base name of an expression: of `cfg.a`, `cfg`."""
    step: Any = wanted
    while not isinstance(step, ast.Name):
        step = step.value
    return step.id


def part(wanted: ast.expr) -> str:
    """Return the last name of an expression: of `cfg.a`, `a`."""
    if isinstance(wanted, ast.Attribute):
        return wanted.attr
    return wanted.id if isinstance(wanted, ast.Name) else str(ast.literal_eval(wanted.slice))  # type: ignore[attr-defined]


def value(namespace: Mapping[str, Any], wanted: ast.expr) -> Any:
    """Evaluate a variable's expression in a namespace.

    Raises what Python would raise.
    """
    if isinstance(wanted, ast.Attribute):
        return getattr(value(namespace, wanted.value), wanted.attr)
    if isinstance(wanted, ast.Subscript):
        return value(namespace, wanted.value)[ast.literal_eval(wanted.slice)]
    return namespace[root(wanted)]


def names_of(source: str) -> list[str]:
    """List every name that a program mentions, in order of appearance."""
    found = (n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name))
    return list(dict.fromkeys(found))


def bound(source: str) -> set[str]:
    """Return the names that a program binds in its own scope."""
    names = (n for n in _own_scope(ast.parse(source)) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


def made_anew(source: str) -> set[str]:
    """Return the names that a program assigns before it reads them.

    It needs no copy of what they are now: after a run that failed that may fill the card. A name
    that is assigned in a branch only may be read without it, and does not count.
    """
    first: dict[str, bool] = {}
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return set()
    for statement in statements:
        for name, stored in _uses(statement):
            first.setdefault(name, stored)
    return {name for name, stored in first.items() if stored}


def _uses(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield names as they are evaluated, and if each is surely assigned."""
    parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Store)
        return
    if isinstance(node, (*_INNER, *_UNSURE)):
        yield from _unsure(parts)
        return
    if isinstance(node, ast.Assign):
        parts = (node.value, *node.targets)
    elif isinstance(node, ast.AnnAssign):
        parts = () if node.value is None else (node.value, node.target)
    elif isinstance(node, ast.For):
        parts = (node.iter, node.target, *node.body, *node.orelse)
    for part in parts:
        yield from _uses(part)


def _unsure(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, bool]]:
    """Yield all names inside of nodes as read."""
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                yield one.id, False


def find_assignments(tree: ast.Module, wanted: ast.expr) -> list[Assignment]:
    """List the places where the module's scope assigns it, by line."""
    text = ast.unparse(wanted)
    found: list[Assignment] = []
    known: dict[int, Assignment] = {}
    for node in _own_scope(tree):
        if isinstance(node, ast.Assign):
            for one in node.targets:
                known |= _pairs(one, node, "value")
        elif isinstance(node, ast.AnnAssign):
            known[id(node.target)] = Assignment(node.lineno, node.value, node, "value")
    for node in _own_scope(tree):
        if isinstance(node, _TARGETS) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node) == text:
                found.append(known.get(id(node), Assignment(node.lineno)))
        elif isinstance(node, _INNER) and not isinstance(node, ast.Lambda):
            found += [Assignment(node.lineno)] if node.name == text else []
        elif isinstance(node, ast.alias) and (node.asname or node.name) == text:
            found.append(Assignment(node.lineno))
    return sorted(found, key=lambda place: place.line)


def keywords(tree: ast.AST, wanted: ast.expr) -> list[Assignment]:
    """List calls that pass it as a keyword with an integer literal.

    An example is `DataLoader(data, batch_size=32)`.
    """
    if not isinstance(wanted, ast.Name):
        return []
    found = [p for n in ast.walk(tree) if isinstance(n, ast.Call) for p in parts(n, wanted)]
    return [place for place in found if place.number() is not None]


def parts(made: ast.expr | None, wanted: ast.expr) -> list[Assignment]:
    """List the places where a call or a dict sets it by name.

    Examples are `Config(batch_size=32)` and `{"batch_size": 32}`.
    """
    name = part(wanted)
    if isinstance(made, ast.Call):
        given = (k for k in made.keywords if k.arg == name)
        return [Assignment(k.value.lineno, k.value, k, "value") for k in given]
    if isinstance(made, ast.Dict):
        return [
            Assignment(made.values[i].lineno, made.values[i], made.values, i)
            for i, key in enumerate(made.keys)
            if isinstance(key, ast.Constant) and str(key.value) == name
        ]
    return []


def _own_scope(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module's nodes, without the bodies of functions and classes."""
    queue: list[ast.AST] = list(tree.body)
    while queue:
        node = queue.pop(0)
        yield node
        if not isinstance(node, _INNER):
            queue += ast.iter_child_nodes(node)


def _pairs(left: ast.expr, owner: Any, key: Any) -> dict[int, Assignment]:
    """Map each assigned name's node id to its expression's place."""
    right = owner[key] if isinstance(owner, list) else getattr(owner, key)
    both = (ast.Tuple, ast.List)
    if isinstance(left, both) and isinstance(right, both) and len(left.elts) == len(right.elts):
        found: dict[int, Assignment] = {}
        for number, one in enumerate(left.elts):
            found |= _pairs(one, right.elts, number)
        return found
    return {id(left): Assignment(left.lineno, right, owner, key)}
