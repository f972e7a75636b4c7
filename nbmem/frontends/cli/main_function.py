"""Keep the variables of the function with which a script ends.

Most scripts end with `main()`. When it returns its variables are gone, and with them the names of
what held memory until then. No code of the script runs behind its last call, so its frame may live
a moment longer.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator
from types import CodeType, FrameType
from typing import Any

from nbmem.core.session.source_files import is_library

MOST_EVENTS = 300_000
"""Calls and returns that are looked at for the function: 0.1 s. A decorator or a parser of
arguments runs before it."""
MOST_FUNCTIONS = 4
"""Functions that call each other at their ends, of which the variables are read."""
_MAIN = ast.unparse(ast.parse('__name__ == "__main__"'))

Lines = range


class MainFunction:
    """The calls with which a script ends.

    `main()` is one, and `train(args)` at the end of that function.

    Args:
        source: The script.
        path: Its file.

    Attributes:
        parts: The script's code: up to its last statement, and that statement if it calls a
            function. All of it where nothing is known of the end.
        frames: The frames of the functions that were found, the outermost first.

    Raises:
        SyntaxError: As Python raises it.
    """

    def __init__(self, source: bytes, path: str) -> None:
        whole = compile(source, path, "exec", dont_inherit=True)
        self.parts: list[CodeType] = [whole]
        self.frames: list[FrameType] = []
        self._path, self._events = path, 0
        self._calls: list[tuple[frozenset[str], Lines]] = []
        tree = ast.parse(source, path)
        last = _split(tree)
        if last is not None:
            self._calls = list(_calls_at_end(last, tree))
        if last is not None and self._calls:
            flags = whole.co_flags & _FUTURE
            trees = tree, ast.Module([last], [])
            self.parts = [compile(one, path, "exec", flags, dont_inherit=True) for one in trees]

    def run(self, namespace: dict[str, Any]) -> None:
        """Run the script in its namespace."""
        *before, last = self.parts
        for part in before:
            exec(part, namespace)  # noqa: S102 - the user's script
        watched = bool(before) and sys.getprofile() is None
        if watched:
            sys.setprofile(self._on_event)
        try:
            exec(last, namespace)  # noqa: S102 - the user's script
        finally:
            if watched and sys.getprofile() == self._on_event:
                sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        self._events += 1
        if event == "call" and self._is_next(frame):
            self.frames.append(frame)
        if self._events > MOST_EVENTS or len(self.frames) == len(self._calls):
            sys.setprofile(None)

    def _is_next(self, frame: FrameType) -> bool:
        """Return whether a function is called at the end of the one before it."""
        code = frame.f_code
        names, lines = self._calls[len(self.frames)]
        if code.co_name not in names or is_library(code.co_filename):
            return False
        outer = self.frames[-1] if self.frames else None
        caller = frame.f_back
        while caller is not None and caller is not outer and caller.f_code is not self.parts[-1]:
            caller = caller.f_back
        return caller is not None and caller.f_lineno in lines


_FUTURE = sum(
    getattr(__import__("__future__"), name).compiler_flag
    for name in __import__("__future__").all_feature_names
)


def _split(tree: ast.Module) -> ast.stmt | None:
    """Take a script's last statement off; return it, or None.

    In `if __name__ == "__main__":` it is the last one below it, with the same condition.
    """
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.If):
        return tree.body.pop() if last is not None else None
    if last.orelse or ast.unparse(last.test) != _MAIN:
        return None
    inner = last.body.pop()
    if not last.body:
        tree.body.pop()
    return ast.copy_location(ast.If(last.test, [inner], []), last)


def _calls_at_end(last: ast.stmt, tree: ast.Module) -> list[tuple[frozenset[str], Lines]]:
    """Return the names that the last statement calls, with its lines.

    The same of the function's own last statement follows, if it is the script's.
    """
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    found: list[tuple[frozenset[str], Lines]] = []
    statement = last.body[-1] if isinstance(last, ast.If) else last
    while len(found) < MOST_FUNCTIONS:
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return, ast.Raise)):
            break
        value = statement.exc if isinstance(statement, ast.Raise) else statement.value
        names = frozenset(_called(value, functions))
        if not any(isinstance(one, ast.Call) for one in ast.walk(statement)):
            break
        end = statement.end_lineno or statement.lineno
        found.append((names, range(statement.lineno, end + 1)))
        called = [functions[name] for name in sorted(names) if name in functions]
        if len(called) != 1:
            break
        statement = called[0].body[-1]
    return found


def _called(value: ast.expr | None, functions: Container[str]) -> Iterator[str]:
    """Yield names of the function that an expression calls last.

    What is none of the script's own may call its arguments: `sys.exit(main())`, `Fire(main)`.
    """
    if isinstance(value, (ast.Name, ast.Attribute)):
        yield _name_of(value)
    if not isinstance(value, ast.Call):
        return
    if isinstance(value.func, (ast.Name, ast.Attribute)):
        yield _name_of(value.func)
        if _name_of(value.func) in functions:
            return
    for argument in value.args:
        yield from _called(argument, functions)


def _name_of(name: ast.Name | ast.Attribute) -> str:
    return name.id if isinstance(name, ast.Name) else name.attr
