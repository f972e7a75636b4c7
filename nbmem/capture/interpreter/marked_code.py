"""Compile a function of the user's again, with calls of nbmem's inside.

They stand at its begin, at each return, and behind the lines that call certain functions. What the
function computes, its variables and the lines of its tracebacks stay as they are. It costs nothing
while the function computes, which Python's profiler would.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from nbmem.capture.interpreter.object_members import module_namespace, namespace_of
from nbmem.capture.interpreter.roots import is_users_class, is_users_module

MAX_LINES = 20_000
"""Of a source file. A longer one takes half a second to compile."""
_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_NOT_PLAIN = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ITERABLE_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
"""Flags of functions whose variables live between two calls."""
_COMPILES = re.compile(r"(?<!\bre)\.compile\b|\btorch\b.*\bimport\b.*\bcompile\b")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LINES = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
Function = ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions that marked code calls.

    Attributes:
        module: Their module. Where it is not imported, nothing is called.
        begins: Called without arguments at the function's begin.
        returns: Called with the value that is returned, and returns it.
        behind: Called without arguments behind a line.
    """

    module: str
    begins: str
    returns: str
    behind: str


class FunctionSource:
    """The source of one function, which compiles to the very code that it has.

    Attributes:
        has_loop: Whether a loop is among its lines.
        compiles: Whether its file calls torch.compile. Dynamo reads a function's code, and would
            give up one with other calls inside.
    """

    def __init__(self, code: CodeType, lines: list[str]) -> None:
        self._code, self._lines = code, lines
        self._alone = False
        self._node = self._find(self._parse())
        self.compiles = any(_COMPILES.search(line) for line in lines)
        self.has_loop = any(isinstance(one, _LOOPS) for one in _own_nodes(self._node.body))

    def calls(self) -> dict[str, bool]:
        """Return the names that it calls, with whether only in loops."""
        found: dict[str, bool] = {}
        for called, in_loop in _calls(self._node.body, in_loop=False):
            found[called] = found.get(called, True) and in_loop
        return found

    def marked(self, names: Collection[str], hooks: Hooks) -> CodeType | None:
        """Return the code with calls of the hooks; None if it cannot be made.

        Args:
            names: Last names of functions. Behind the lines that call them is a hook.
            hooks: What is called.
        """
        tree = self._parse()
        node = self._find(tree)
        marks = _Marks(names, hooks)
        documented = ast.get_docstring(node, clean=False) is not None
        first, rest = node.body[:documented], node.body[documented:]
        at = node.body[documented] if rest else node.body[0]
        begin, end = marks.statement(hooks.begins, at), marks.statement(hooks.returns, at)
        node.body = [*first, begin, *marks.lines(rest), end]
        code = _code_in(self._compiled(tree), self._code)
        return code if code is not None and code.co_freevars == self._code.co_freevars else None

    def _parse(self) -> ast.Module:
        return ast.parse("".join(self._lines), self._code.co_filename)

    def _compiled(self, tree: ast.Module) -> CodeType:
        if self._alone:
            tree.body = [one for one in tree.body if self._node_is_in(one)]
        flags = self._code.co_flags & _FUTURE
        code: CodeType = compile(tree, self._code.co_filename, "exec", flags, dont_inherit=True)
        return code

    def _find(self, tree: ast.Module) -> Function:
        for node in ast.walk(tree):
            if isinstance(node, Function) and node.name == self._code.co_name:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first == self._code.co_firstlineno:
                    return node
        raise LookupError(self._code.co_name)

    def _node_is_in(self, line: ast.stmt) -> bool:
        return line.lineno <= self._node.lineno <= (line.end_lineno or line.lineno)

    def is_current(self) -> bool:
        """Return whether the source compiles to the function's code.

        A file may have changed since, or another tool may have rewritten the function. IPython
        compiles each statement of a cell alone, which gives other code for what is imported.
        """
        for self._alone in (False, True):
            if _code_in(self._compiled(self._parse()), self._code) == self._code:
                return True
        return False


def source_of(code: CodeType) -> FunctionSource | None:
    """Return the source of a plain function; None where it is unknown."""
    if not code.co_flags & inspect.CO_OPTIMIZED or code.co_flags & _NOT_PLAIN:
        return None
    lines = linecache.getlines(code.co_filename)
    if not 0 < len(lines) <= MAX_LINES:
        return None
    try:
        source = FunctionSource(code, lines)
        return source if source.is_current() else None
    except (SyntaxError, ValueError, LookupError, RecursionError):
        return None


def values_named(function: FunctionType, names: Mapping[str, bool]) -> Iterator[tuple[str, Any]]:
    """Yield with its name what a function may call by one of the names.

    Those are values and methods that its file, or a module that it names, has. Nothing of the
    user's runs. A method may be that of another class.
    """
    inside = function.__globals__
    modules = [one for one in list(inside.values()) if is_users_module(one)]
    for space in (inside, *map(module_namespace, modules)):
        for key, value in list(space.items()):
            if issubclass(type(value), type):
                if is_users_class(value):
                    methods = list(namespace_of(value).items())
                    yield from ((name, one) for name, one in methods if name in names)
            elif key in names:
                yield key, value


def _code_in(code: CodeType, wanted: CodeType) -> CodeType | None:
    """Return the code of a function in that of its file."""
    for one in code.co_consts:
        if not isinstance(one, CodeType):
            continue
        if (one.co_qualname, one.co_firstlineno) == (wanted.co_qualname, wanted.co_firstlineno):
            return one
        found = _code_in(one, wanted)
        if found is not None:
            return found
    return None


def _own_nodes(body: Collection[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of lines, without those of functions inside."""
    for node in body:
        if not isinstance(node, _SCOPES):
            yield node
            yield from _own_nodes(list(ast.iter_child_nodes(node)))


def _calls(body: Collection[ast.AST], *, in_loop: bool) -> Iterator[tuple[str, bool]]:
    for node in body:
        if isinstance(node, _SCOPES):
            continue
        name = _called(node)
        if name is not None:
            yield name, in_loop
        inside = in_loop or isinstance(node, (*_LOOPS, *_COMPREHENSIONS))
        yield from _calls(list(ast.iter_child_nodes(node)), in_loop=inside)


def _called(node: ast.AST) -> str | None:
    """Return the last name of what a node calls; None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


class _Marks(ast.NodeTransformer):
    """Inserts the calls into the lines of a function."""

    def __init__(self, names: Collection[str], hooks: Hooks) -> None:
        self._names, self._hooks = names, hooks

    def statement(self, hook: str, at: ast.stmt) -> ast.stmt:
        """Return a call of a hook as a statement, at the place of a line."""
        return ast.copy_location(ast.Expr(self._call(hook, [], at)), at)

    def lines(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return lines with the calls among them."""
        found: list[ast.stmt] = []
        for line in body:
            found.append(line if isinstance(line, _SCOPES) else self.visit(line))
            if isinstance(line, _LINES) and self._calls_one(line):
                found.append(self.statement(self._hooks.behind, line))
        return found

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Insert the calls into the blocks of a compound statement."""
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self.lines(value))
            elif isinstance(value, list):
                for one in value:
                    if isinstance(one, (ast.ExceptHandler, ast.match_case)):
                        self.visit(one)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Have the value go through a hook."""
        node.value = self._call(self._hooks.returns, [node.value] if node.value else [], node)
        return node

    def _calls_one(self, line: ast.stmt) -> bool:
        return any(_called(node) in self._names for node in _own_nodes([line]))

    def _call(self, hook: str, arguments: list[ast.expr], at: ast.stmt) -> ast.Call:
        # A function may go to a process in which nbmem is not there.
        source = (
            f"getattr(__import__('sys').modules.get({self._hooks.module!r}), {hook!r}, "
            "lambda value=None: value)"
        )
        function = ast.parse(source, mode="eval").body
        for node in ast.walk(function):
            ast.copy_location(node, at)
        return ast.copy_location(ast.Call(function, arguments, []), at)
