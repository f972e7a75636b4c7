"""Keep the variables of the function that a traced cell calls last.

Before the cell's last statement IPython runs one of nbmem's, which looks for the function.
"""

from __future__ import annotations

import ast
from types import FrameType, FunctionType
from typing import Any

from nbmem.capture.interpreter.last_call import LastCall, called_last
from nbmem.capture.interpreter.object_members import is_optimized

_BEGIN = f"try:\n    __import__('sys').modules[{__name__!r}].begin()\nexcept Exception:\n    pass"
_waiting: list[LastStatement] = []


class LastStatement:
    """The last statement of one traced cell; an AST transformer of IPython.

    https://ipython.readthedocs.io/en/stable/config/inputtransforms.html#ast-transformations

    Args:
        shell: The shell that runs the cell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._names: dict[str, Any] = shell.user_global_ns
        self._call: LastCall | None = None
        self._visited = False
        shell.ast_transformers.append(self)

    def visit(self, tree: ast.AST) -> ast.AST:
        """Insert a statement before the last one if that calls a function.

        IPython calls it with the cell's code, before it runs.
        """
        if self._visited or not isinstance(tree, ast.Module) or not tree.body:
            return tree  # a magic in the cell may run another one
        self._visited = True
        last = tree.body[-1]
        functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        functions |= {name for name, value in self._names.items() if type(value) is FunctionType}
        names = called_last(last, functions)
        if names:
            self._call = LastCall(names, self._is_statement)
            _waiting[:] = [self]
            inserted = ast.parse(_BEGIN).body
            for node in ast.walk(inserted[0]):
                ast.copy_location(node, last)
            tree.body[-1:-1] = inserted
        return tree

    def begin(self) -> None:
        """Look for the function from now on."""
        if self._call is not None:
            self._call.begin()

    def end(self) -> FrameType | None:
        """Stop, and return the function's frame; None if there was none."""
        if self in self._shell.ast_transformers:
            self._shell.ast_transformers.remove(self)
        _waiting.clear()
        call, self._call = self._call, None
        if call is None:
            return None
        call.end()
        frame, call.frame = call.frame, None
        return frame

    def _is_statement(self, caller: FrameType) -> bool:
        return caller.f_globals is self._names and not is_optimized(caller)


def begin() -> None:
    """Look for the function that the cell's last statement calls: that statement is next."""
    if _waiting:
        _waiting[0].begin()
