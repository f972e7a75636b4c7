"""Keep the variables of the function with which a script ends.

Most scripts end with `main()`. When it returns its variables are gone, and with them the names of
what held memory until then. No code of the script runs behind its last call, so its frame may live
a moment longer.
"""

from __future__ import annotations
import __future__

import ast
import re
import sys
from collections.abc import Container, Iterator
from types import CodeType, FrameType
from typing import Any

from nbmem.core.session.source_files import is_library

MOST_EVENTS = 100_000
"""Calls and returns that are looked at for the function: 30 ms. A decorator or a parser of
arguments runs before it."""
_ONCE = re.compile(
    r"/torch/(?:utils/_contextlib|distributed/elastic/.*)\.py$|/contextlib\.py$"
    r"|/(?:click|typer|fire|absl|hydra|tyro)/"
)
_MAIN = ast.unparse(ast.parse('__name__ == "__main__"'))
_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class MainFunction:
    """The call with which a script ends.

    Args:
        source: The script.
        path: Its file.

    Attributes:
        parts: The script's code: up to its last statement, and that statement if it calls a
            function. All of it where nothing is known of the end.
        frame: The function's frame once it has begun; None without one.

    Raises:
        SyntaxError: As Python raises it.
    """

    def __init__(self, source: bytes, path: str) -> None:
        whole = compile(source, path, "exec", dont_inherit=True)
        self.parts: list[CodeType] = [whole]
        self.frame: FrameType | None = None
        self._names: frozenset[str] = frozenset()
        self._events = 0
        tree = ast.parse(source, path)
        last = _split(tree)
        if last is not None:
            self._names = _called_at_end(last, tree)
        if last is not None and self._names:
            flags = whole.co_flags & _FUTURE
            trees = tree, ast.Module([last], [])
            self.parts = [compile(one, path, "exec", flags, dont_inherit=True) for one in trees]

    def run(self, namespace: dict[str, Any]) -> None:
        """Run the script in its namespace.

        Python calls `_on_event` up to the function's begin, and not while it computes: the
        references that it holds then would show in counts of references.
        """
        *before, last = self.parts
        for part in before:
            exec(part, namespace)  # noqa: S102 - the user's script
        # With something on the card it is `evaluate(model)`, and the work was done before.
        watched = bool(before) and sys.getprofile() is None and not _card_in_use()
        if watched:
            sys.setprofile(self._on_event)
        try:
            exec(last, namespace)  # noqa: S102 - the user's script
        finally:
            if watched and sys.getprofile() == self._on_event:
                sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        self._events += 1
        if event == "call" and self._is_main(frame):
            self.frame = frame
        if self.frame is not None or self._events > MOST_EVENTS:
            sys.setprofile(None)

    def _is_main(self, frame: FrameType) -> bool:
        """Return whether the last statement has called a function."""
        if frame.f_code.co_name not in self._names or is_library(frame.f_code.co_filename):
            return False
        caller = frame.f_back
        while caller is not None and _calls_once(caller.f_code.co_filename):
            caller = caller.f_back
        return caller is not None and caller.f_code is self.parts[-1]


def _calls_once(file: str) -> bool:
    """Return whether a decorator or parser calls its function once.

    Others may call it again after it has failed, with its variables freed.
    """
    return _ONCE.search(file.replace("\\", "/")) is not None


def _card_in_use() -> bool:
    """Return whether torch has memory on a card."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda is not None and cuda.is_initialized() and cuda.memory_allocated() > 0


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


def _called_at_end(last: ast.stmt, tree: ast.Module) -> frozenset[str]:
    """Return names of the function that the last statement calls last."""
    statement = last.body[-1] if isinstance(last, ast.If) else last
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Raise)):
        return frozenset()
    value = statement.exc if isinstance(statement, ast.Raise) else statement.value
    functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    return frozenset(_called(value, functions)) if isinstance(value, ast.Call) else frozenset()


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
