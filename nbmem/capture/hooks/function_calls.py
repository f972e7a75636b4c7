"""Follow the functions that the lines of a traced cell or script call.

Their variables are gone when they return. Before and behind each line that calls one, Python runs a
statement of nbmem's: it finds the function, and has a recording look at its variables.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Container, Mapping
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.last_call import LastCall, called_last, users_function, value_of
from nbmem.capture.interpreter.object_members import is_optimized
from nbmem.capture.torch_cuda import peaks_allocated
from nbmem.core.runtime.entry_points import entry

if TYPE_CHECKING:
    from nbmem.capture.hooks.nested_calls import NestedCalls

MAX_CALLS = 32
"""Lines that are followed, the last one included."""
_PART = "the variables of a function"
_STATEMENT = f"try:\n    __import__('sys').modules[{__name__!r}].{{}}\nexcept Exception:\n    pass"
_following: list[FunctionCalls] = []


def _lose(_part: str, _err: Exception) -> None:
    """Give up following: the names of a function's variables are lost."""
    _following.clear()


def _as_it_was(_calls: FunctionCalls, tree: ast.AST) -> ast.AST:
    return tree


class FunctionCalls:
    """The functions that the lines of one cell or script call.

    It is an AST transformer, as IPython has them:
    https://ipython.readthedocs.io/en/stable/config/inputtransforms.html#ast-transformations

    Args:
        variables: The namespace in which the lines run.
        returned: Called with a function that has returned, if more was allocated during its call
            than ever before, or if it is the last one and no other was told. Its variables live
            until the caller takes its frame.
        nested: Looks at the functions that these call in turn; None not to.
    """

    def __init__(
        self,
        variables: Mapping[str, Any],
        returned: Callable[[LastCall], None],
        nested: NestedCalls | None = None,
    ) -> None:
        self._variables = variables
        self._returned = returned
        self._nested = nested
        self._count = 0
        self._call: LastCall | None = None
        self._peaks: list[int] = []
        self._told = self._visited = False

    @entry(_PART, otherwise=_as_it_was, on_fault=_lose)
    def visit(self, tree: ast.AST) -> ast.AST:
        """Follow a cell's lines, as IPython asks for before it runs them."""
        if isinstance(tree, ast.Module) and tree.body and not self._visited:
            self._visited = True  # a magic in the cell may run another one
            last = tree.body[-1]
            self.follow(tree)
            if tree.body[-1] is not last:  # IPython shows the value of the last line
                tree.body.pop()
        return tree

    def follow(self, tree: ast.Module) -> None:
        """Insert the statements around each line that calls a function."""
        own = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        own |= {name for name, value in self._variables.items() if type(value) is FunctionType}
        tree.body = self._followed(tree.body, own)
        _following[:] = [self]

    def _followed(self, body: list[ast.stmt], own: Container[str]) -> list[ast.stmt]:
        """Return lines with the statements around their calls.

        Those inside `with` and `if` are among them: they run once.
        """
        found: list[ast.stmt] = []
        for line in body:
            paths = called_last(line, own)
            if isinstance(line, (ast.With, ast.If)):
                line.body = self._followed(line.body, own)
            if paths and self._count < MAX_CALLS:
                self._count += 1
                begins = _statement(f"begins({sorted(paths)})", line)
                found += [begins, line, _statement("ends()", line)]
            else:
                found.append(line)
        return found

    def begins(self, paths: Collection[str]) -> None:
        """Look for the function that the next line calls.

        Args:
            paths: What it may be (`called_last`).
        """
        self.watch_nested(paths)
        self._peaks = peaks_allocated()
        self._call = LastCall(paths, self._is_line)
        self._call.begin(self._variables)

    @entry(_PART, on_fault=_lose)
    def watch_nested(self, paths: Collection[str]) -> None:
        """Watch the functions that those of the next line call.

        Args:
            paths: What the line may call (`called_last`).
        """
        if self._nested is None:
            return
        for path in paths:
            function = users_function(value_of(path, self._variables))
            if function is not None:
                self._nested.watch(function, is_kept=True)

    def ends(self, error: BaseException | None = None, *, last: bool = False) -> None:
        """Tell of the function that has returned or failed.

        Args:
            error: What has ended it; None if it has returned.
            last: Whether it is the last one.
        """
        call, self._call = self._call, None
        if call is None:
            return
        call.end()
        peaks = peaks_allocated()
        higher = any(map(int.__gt__, peaks, self._peaks)) or len(peaks) > len(self._peaks)
        if call.frame is None or not (higher or (last and not self._told)):
            return
        if self._nested is not None:
            self._nested.returned()
            if self._nested.is_better():
                return
            self._nested.set_read()
        self._told = True
        call.inner = self.failed_frames(error)
        self._returned(call)

    def failed_frames(self, error: BaseException | None) -> list[FrameType]:
        """Return the frames of followed functions that an error has ended.

        The innermost is first. The last function's own, which called them, is none of them.
        """
        return [] if self._nested is None else self._nested.failed_frames(error)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop following; a call that has not ended is told of.

        Args:
            error: What has ended the lines; None without one.
        """
        if self in _following:
            _following.clear()
        if self._nested is not None:
            self._nested.stop()
        self.ends(error, last=True)

    def _is_line(self, caller: FrameType) -> bool:
        return caller.f_globals is self._variables and not is_optimized(caller)


def _statement(call: str, line: ast.stmt) -> ast.stmt:
    """Return a call of this module's as a statement at the place of a line."""
    statement = ast.parse(_STATEMENT.format(call)).body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, line)
    return statement


@entry(_PART, on_fault=_lose)
def begins(paths: Collection[str]) -> None:
    """Look for the function that the next line calls, by its dotted names."""
    if _following:
        _following[0].begins(paths)


@entry(_PART, on_fault=_lose)
def ends() -> None:
    """Look at the variables of the function that has returned."""
    if _following:
        _following[0].ends()
