"""Compile a function of the user's again, with calls of nbmem's inside.

They stand at its begin, at each return, and behind the lines that call certain functions. What the
function computes, its variables and the lines of its tracebacks stay as they are. It costs nothing
while the function computes, which Python's profiler would.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import itertools
import linecache
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from nbmem.capture.interpreter.object_members import module_namespace, namespace_of
from nbmem.capture.interpreter.roots import is_users_class, is_users_module

MAX_LINES = 20_000
"""Of a source file. A longer one takes half a second to parse."""
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

    Only the statement of its file is compiled that has it, without the other methods of its class.

    Attributes:
        has_loop: Whether a loop is among its lines.
        compiles: Whether its file calls torch.compile. Dynamo reads a function's code, and would
            give up one with other calls inside.
    """

    def __init__(self, code: CodeType, lines: tuple[str, ...]) -> None:
        outline = _outline(code.co_filename, lines)
        first, last = next(
            span for span in outline.statements if span[0] <= code.co_firstlineno <= span[1]
        )
        self._code, self._first = code, first
        self._text = "".join(lines[first - 1 : last])
        self._imported = outline.imported
        _, node = self._find(self._parse())
        self.compiles = outline.compiles
        self.has_loop = any(isinstance(one, _LOOPS) for one in _own_nodes(node.body))
        self._calls = dict[str, bool]()
        for called, in_loop in _calls(node.body, in_loop=False):
            self._calls[called] = self._calls.get(called, True) and in_loop

    def calls(self) -> dict[str, bool]:
        """Return the names that it calls, with whether only in loops."""
        return self._calls

    def marked(self, names: Collection[str], hooks: Hooks) -> CodeType | None:
        """Return the code with calls of the hooks; None if it cannot be made.

        Args:
            names: Last names of functions. Behind the lines that call them is a hook.
            hooks: What is called.
        """
        tree = self._parse()
        _, node = self._find(tree)
        marks = _Marks(names, hooks)
        documented = ast.get_docstring(node, clean=False) is not None
        first, rest = node.body[:documented], node.body[documented:]
        at = node.body[documented] if rest else node.body[0]
        begin, end = marks.statement(hooks.begins, at), marks.statement(hooks.returns, at)
        node.body = [*first, begin, *marks.lines(rest), end]
        code = self._compiled(tree)
        return code if code is not None and code.co_freevars == self._code.co_freevars else None

    def is_current(self) -> bool:
        """Return whether the source compiles to the function's code.

        A file may have changed since, or another tool may have rewritten the function. IPython
        compiles each statement of a cell alone, which gives other code for what is imported.
        """
        if self._compiled(self._parse()) == self._code:
            return True
        self._imported = ()
        return self._compiled(self._parse()) == self._code

    def _parse(self) -> ast.Module:
        tree = ast.parse(self._text, self._code.co_filename)
        return ast.increment_lineno(tree, self._first - 1)

    def _compiled(self, tree: ast.Module) -> CodeType | None:
        """Compile a tree, and return the function's code in it."""
        way, _ = self._find(tree)
        for outer, inner in itertools.pairwise(way):
            if isinstance(outer, ast.ClassDef):
                outer.body = [inner]
        if self._imported:
            names = [ast.alias(name) for name in self._imported]
            tree.body.append(ast.copy_location(ast.Import(names), tree.body[0]))
            ast.fix_missing_locations(tree.body[-1])
        flags = self._code.co_flags & _FUTURE
        code = compile(tree, self._code.co_filename, "exec", flags, dont_inherit=True)
        return _code_in(code, self._code)

    def _find(self, tree: ast.Module) -> tuple[list[ast.stmt], Function]:
        """Return the statements that lead to the function's node, and the node."""
        way = _way_to(tree.body, self._code)
        if not way or not isinstance(way[-1], Function):
            raise LookupError(self._code.co_name)
        return way, way[-1]


def source_of(code: CodeType) -> FunctionSource | None:
    """Return the source of a plain function; None where it is unknown."""
    if not code.co_flags & inspect.CO_OPTIMIZED or code.co_flags & _NOT_PLAIN:
        return None
    lines = linecache.getlines(code.co_filename)
    if not 0 < len(lines) <= MAX_LINES:
        return None
    try:
        source = FunctionSource(code, tuple(lines))
        return source if source.is_current() else None
    except (SyntaxError, ValueError, LookupError, RecursionError, StopIteration):
        return None


class _Outline(NamedTuple):
    """The statements of a source file, and what concerns all of them.

    Attributes:
        statements: First and last line of each.
        imported: Names that the file imports. Python compiles calls through them in another way.
        compiles: Whether it calls torch.compile.
    """

    statements: list[tuple[int, int]]
    imported: tuple[str, ...]
    compiles: bool


@functools.lru_cache(maxsize=32)
def _outline(name: str, lines: tuple[str, ...]) -> _Outline:
    """Parse a file once for all of its functions."""
    tree = ast.parse("".join(lines), name)
    own = list(_own_nodes(tree.body))
    imports = [one for one in own if isinstance(one, (ast.Import, ast.ImportFrom))]
    imported = {
        (each.asname or each.name.partition(".")[0]): None for one in imports for each in one.names
    }
    imported.pop("*", None)
    return _Outline(
        [(_first_line(one), one.end_lineno or one.lineno) for one in tree.body],
        tuple(imported),
        any(map(_COMPILES.search, lines)),
    )


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _way_to(body: list[ast.stmt], code: CodeType) -> list[ast.stmt]:
    """Return the statements that lead to a function, its own the last one.

    There are none if it is not there.
    """
    for node in body:
        named = isinstance(node, Function) and node.name == code.co_name
        if named and _first_line(node) == code.co_firstlineno:
            return [node]
        if _first_line(node) <= code.co_firstlineno <= (node.end_lineno or node.lineno):
            for inner in _blocks(node):
                way = _way_to(inner, code)
                if way:
                    return [node, *way]
    return []


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value:
            if isinstance(value[0], ast.stmt):
                yield value
            elif isinstance(value[0], (ast.ExceptHandler, ast.match_case)):
                for one in value:
                    yield one.body


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
