"""Follow the functions that a traced cell's own lines call.

Their variables are gone when they return. Before and behind each line that calls one, IPython runs
a statement of nbmem's: it finds the function, and has the caller look at its variables.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container
from types import FrameType, FunctionType
from typing import Any

from nbmem.capture.interpreter.last_call import LastCall, called_last
from nbmem.capture.interpreter.object_members import is_optimized
from nbmem.capture.torch_cuda import peaks_allocated
from nbmem.frontends.notebook.error_boundary import shell_entry

MAX_CALLS = 32
"""Lines of a cell that are followed, the last one included."""
_STATEMENT = f"try:\n    __import__('sys').modules[{__name__!r}].{{}}\nexcept Exception:\n    pass"
_following: list[FunctionCalls] = []


class FunctionCalls:
    """The functions that one traced cell's lines call; an AST transformer of IPython.

    https://ipython.readthedocs.io/en/stable/config/inputtransforms.html#ast-transformations

    Args:
        shell: The shell that runs the cell.
        returned: Called with a function that has returned, if more was allocated during its call
            than ever before, or if it is the last one and no other was told. Its variables live
            until the caller takes its frame.
    """

    def __init__(self, shell: Any, returned: Callable[[LastCall], None]) -> None:
        self._shell = shell
        self._returned = returned
        self._variables: dict[str, Any] = shell.user_global_ns
        self._names: list[frozenset[str]] = []
        self._call: LastCall | None = None
        self._peaks: list[int] = []
        self._told = self._visited = False
        shell.ast_transformers.append(self)

    def visit(self, tree: ast.AST) -> ast.AST:
        """Insert the statements around each line that calls a function.

        IPython calls it with the cell's code, before it runs.
        """
        if self._visited or not isinstance(tree, ast.Module) or not tree.body:
            return tree  # a magic in the cell may run another one
        self._visited = True
        own = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        own |= {name for name, value in self._variables.items() if type(value) is FunctionType}
        last = tree.body[-1]
        tree.body = self._followed(tree.body, own)
        if tree.body[-1] is not last:  # IPython shows the value of the last line
            tree.body.pop()
        _following[:] = [self]
        return tree

    def _followed(self, body: list[ast.stmt], own: Container[str]) -> list[ast.stmt]:
        """Return lines with the statements around their calls, also inside `with`."""
        found: list[ast.stmt] = []
        for line in body:
            names = called_last(line, own)
            if isinstance(line, ast.With):
                line.body = self._followed(line.body, own)
            if names and len(self._names) < MAX_CALLS:
                begins = _statement(f"begins({len(self._names)})", line)
                self._names.append(names)
                found += [begins, line, _statement("ends()", line)]
            else:
                found.append(line)
        return found

    def begins(self, number: int) -> None:
        """Look for the function that the next line calls.

        Args:
            number: Of the lines that call a function.
        """
        self._peaks = peaks_allocated()
        self._call = LastCall(self._names[number], self._is_line)
        self._call.begin()

    def ends(self, *, last: bool = False) -> None:
        """Tell of the function that has returned or failed.

        Args:
            last: Whether it is the last one of the cell.
        """
        call, self._call = self._call, None
        if call is None:
            return
        call.end()
        peaks = peaks_allocated()
        higher = any(map(int.__gt__, peaks, self._peaks)) or len(peaks) > len(self._peaks)
        if call.frame is not None and (higher or (last and not self._told)):
            self._told = True
            self._returned(call)

    def stop(self) -> None:
        """Stop following; a call that has not ended is told of."""
        if self in self._shell.ast_transformers:
            self._shell.ast_transformers.remove(self)
        _following.clear()
        self.ends(last=True)

    def _is_line(self, caller: FrameType) -> bool:
        return caller.f_globals is self._variables and not is_optimized(caller)


def _statement(call: str, line: ast.stmt) -> ast.stmt:
    """Return a call of this module's as a statement at the place of a line."""
    statement = ast.parse(_STATEMENT.format(call)).body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, line)
    return statement


@shell_entry("find the function that a line calls", in_cell=True)
def begins(number: int) -> None:
    """Look for the function that the next line calls."""
    if _following:
        _following[0].begins(number)


@shell_entry("look at the variables of a function", in_cell=True)
def ends() -> None:
    """Look at the variables of the function that has returned."""
    if _following:
        _following[0].ends()
