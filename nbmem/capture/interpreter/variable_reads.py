"""Find the variables of a source file that no later line reads.

Only the text is used. What cannot be told from it (`eval`, a variable that a nested function reads)
counts as read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Function

_DYNAMIC = frozenset(("globals", "locals", "vars", "eval", "exec"))
"""Functions by which any variable may be read."""
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SAME = frozenset(
    (
        "T", "bfloat16", "chunk", "contiguous", "cpu", "cuda", "data", "detach", "diagonal",
        "double", "expand", "expand_as", "flatten", "float", "half", "imag", "mH", "mT", "movedim",
        "narrow", "numpy", "permute", "real", "requires_grad_", "reshape", "select", "split",
        "squeeze", "swapaxes", "t", "to", "transpose", "type", "unbind", "unfold", "unflatten",
        "unsqueeze", "view", "view_as",
    )
)  # fmt: skip
"""Methods and attributes of a tensor whose result may be the tensor itself, or a view of it."""
_FACTS = frozenset(("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "grad_fn"))
_TORCH = ("torch.", "F.", "nn.functional.", "math.", "print", "len", "range", "float", "int")
"""What the names of functions begin with that retain no argument."""
Callees = tuple[str, ...] | None
"""Names of the functions that were given a variable; None if something else may hold it, too."""


class VariableReads:
    """Variables of one source file, and where they are read."""

    def __init__(self, lines: Sequence[str]) -> None:
        try:
            self._tree: ast.Module | None = ast.parse("\n".join(lines))
        except (SyntaxError, ValueError, RecursionError):
            self._tree = None
        self._scopes: dict[int, _ScopeReads] = {}

    def unread(self, line: int, *, at_top: bool) -> dict[str, Callees]:
        """Return the variables that are not read at a line or behind it.

        Args:
            line: A line that runs, from 1.
            at_top: Whether it runs outside of any function.
        """
        scope = None if self._tree is None else self._scope_at(line, at_top=at_top)
        if scope is None:
            return {}
        if id(scope) not in self._scopes:
            self._scopes[id(scope)] = _ScopeReads(scope)
        return self._scopes[id(scope)].unread(line)

    def function_at(self, line: int) -> int:
        """Return the first line of the innermost function that has a line, or 0."""
        scope = None if self._tree is None else self._scope_at(line, at_top=False)
        return 0 if scope is None or isinstance(scope, ast.Module) else scope.lineno

    @cached_property
    def _functions(self) -> list[Function]:
        """The functions of the file, each before those inside it."""
        nodes = () if self._tree is None else ast.walk(self._tree)
        return [one for one in nodes if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]

    def _scope_at(self, line: int, *, at_top: bool) -> Scope | None:
        """Return the innermost function that has a line, or the file."""
        if at_top:
            return self._tree
        around = (f for f in self._functions if f.body[0].lineno <= line <= (f.end_lineno or 0))
        return next(reversed([*around]), None)


class _ScopeReads:
    """Reads and assignments of one function, or of a file's top level."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._parents = {
            child: node for node in ast.walk(scope) for child in ast.iter_child_nodes(node)
        }
        self._own = list(_own_nodes(scope))
        names = [node for node in self._own if isinstance(node, ast.Name)]
        self._dynamic = any(
            isinstance(node, ast.Name) and node.id in _DYNAMIC for node in ast.walk(scope)
        )
        self._loads: dict[str, list[ast.Name]] = {}
        self._stores: dict[str, list[int]] = {}
        for name in names:
            if isinstance(name.ctx, ast.Load):
                self._loads.setdefault(name.id, []).append(name)
            elif isinstance(name.ctx, ast.Store):
                self._stores.setdefault(name.id, []).append(name.lineno)
                if isinstance(self._parents.get(name), ast.AugAssign):
                    self._loads.setdefault(name.id, []).append(name)

    @cached_property
    def _variables(self) -> set[str]:
        """Variables that are assigned here, and that no nested function reads."""
        inside: set[str] = set()
        for node in self._own:
            if isinstance(node, _NESTED):
                inside |= _free_names(node)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                inside.update(node.names)
        if not isinstance(self._scope, ast.Module):
            arguments = self._scope.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            inside.update(argument.arg for argument in every)
        return set() if self._dynamic else self._stores.keys() - inside

    def unread(self, line: int) -> dict[str, Callees]:
        since = self._since(line)
        return {
            name: self._callees(name)
            for name in sorted(self._variables)
            if min(self._stores[name]) < since
            and not any(load.lineno >= since for load in self._loads.get(name, ()))
        }

    def _since(self, line: int) -> int:
        """Return the line from which reads may come: that of an outer loop."""
        containing = [
            node
            for node in self._own
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        loops = [node.lineno for node in containing if isinstance(node, _LOOPS)]
        simple = [node.lineno for node in containing if not hasattr(node, "body")]
        return min([*loops, max(simple, default=line)])

    def _callees(self, name: str) -> Callees:
        """Return the functions that get a variable, None if others may hold it."""
        found: set[str] = set()
        for load in self._loads.get(name, ()):
            told = self._user(load)
            if told is None:
                return None
            found.add(told)
        return tuple(sorted(found - {""}))

    def _user(self, load: ast.Name) -> str | None:
        """Return the function that is given a variable's tensor, or "".

        None if the tensor, or a view of it, gets a second holder.
        """
        node: ast.AST = load
        while True:
            parent = self._parents.get(node)
            if isinstance(parent, ast.Attribute):
                if parent.attr in _FACTS:
                    return ""
                call = self._parents.get(parent)
                called = isinstance(call, ast.Call) and call.func is parent
                if parent.attr not in _SAME:
                    return "" if called else None
                node = call if called and call is not None else parent
            elif isinstance(parent, ast.Subscript) and parent.value is node:
                node = parent
            elif isinstance(parent, (ast.Subscript, ast.BinOp, ast.UnaryOp, ast.Compare)):
                return ""
            elif isinstance(parent, ast.keyword):
                node = parent
            elif isinstance(parent, ast.Call) and parent.func is not node:
                return _callee(parent)
            else:
                return None


def _callee(call: ast.Call) -> str:
    """Return the name of a function that may hold its argument, or ""."""
    name = ast.unparse(call.func)
    if name.startswith(_TORCH) and name.rpartition(".")[2] not in _SAME:
        return ""
    return name


def _free_names(nested: ast.AST) -> set[str]:
    """Return the names that a function or class may read around itself."""
    if isinstance(nested, ast.ClassDef):
        own_nodes = [*_own_nodes(nested)]
        inside = [_free_names(node) for node in own_nodes if isinstance(node, _NESTED)]
        return {n.id for n in own_nodes if isinstance(n, ast.Name)}.union(*inside)
    names = [node for node in ast.walk(nested) if isinstance(node, ast.Name)]
    own = {node.arg for node in ast.walk(nested) if isinstance(node, ast.arg)}
    own |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    for node in ast.walk(nested):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            own -= {*node.names}
    # A default and a decorator are read outside of the function.
    defaults = getattr(getattr(nested, "args", None), "defaults", ())
    outside = (*getattr(nested, "decorator_list", ()), *defaults)
    read = {n.id for one in outside for n in ast.walk(one) if isinstance(n, ast.Name)}
    return ({name.id for name in names} - own) | read


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, nested functions and classes without theirs."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _NESTED):
            yield from _own_nodes(node)
