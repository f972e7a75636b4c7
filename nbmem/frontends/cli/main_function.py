"""Find the function with which a script ends."""

from __future__ import annotations
import __future__

import ast
import sys
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.last_call import LastCall, called_last

if TYPE_CHECKING:
    from nbmem.capture.hooks.function_calls import FunctionCalls

_MAIN = ast.unparse(ast.parse('__name__ == "__main__"'))
_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class MainFunction:
    """The call with which a script ends.

    Args:
        source: The script.
        path: Its file.
        calls: Follows the functions that its lines call; None to follow none.

    Attributes:
        parts: The script's code: up to its last statement, and that statement. All of it where
            nothing is known of the end.

    Raises:
        SyntaxError: As Python raises it.
    """

    def __init__(self, source: bytes, path: str, calls: FunctionCalls | None = None) -> None:
        whole = compile(source, path, "exec", dont_inherit=True)
        tree = ast.parse(source, path)
        last = _split(tree)
        self._calls, self._names = calls, frozenset[str]()
        self.parts: list[CodeType] = [whole]
        if last is not None:
            self._names = _called_last(last, tree)
            if calls is not None:
                calls.follow(tree)
            flags = whole.co_flags & _FUTURE
            trees = tree, ast.Module([last], [])
            self.parts = [compile(one, path, "exec", flags, dont_inherit=True) for one in trees]
        self._call = LastCall(self._names, lambda caller: caller.f_code is self.parts[-1])

    @property
    def frame(self) -> FrameType | None:
        """The function's frame once it has begun; None without one."""
        return self._call.frame

    def run(self, namespace: dict[str, Any]) -> None:
        """Run the script in its namespace."""
        *before, last = self.parts
        for part in before:
            exec(part, namespace)  # noqa: S102 - the user's script
        # With something on the card it is `evaluate(model)`, and the work was done before.
        if not _card_in_use():
            if self._calls is not None:
                self._calls.watch_nested(self._names)
            self._call.begin(namespace)
        elif self._calls is not None:
            self._calls.begins(self._names)
        try:
            exec(last, namespace)  # noqa: S102 - the user's script
        finally:
            self._call.end()

    def release(self) -> None:
        """Let the function's variables go."""
        self._call.frame = None


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


def _called_last(last: ast.stmt, tree: ast.Module) -> frozenset[str]:
    functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    return called_last(last.body[-1] if isinstance(last, ast.If) else last, functions)
