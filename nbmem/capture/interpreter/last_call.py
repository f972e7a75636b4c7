"""Keep the variables of the function that a script or cell calls last.

Most scripts end with `main()`, and many cells with `train(model)`. When it returns its variables
are gone, and with them the names of what held memory until then. No code of the user's runs behind
the last call, so the function's frame may live a moment longer.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import getattr_static
from types import FrameType, FunctionType, MethodType
from typing import Any

from nbmem.capture.interpreter.object_members import locals_of, namespace_of
from nbmem.core.runtime.entry_points import PACKAGE
from nbmem.core.session.source_files import is_library

MOST_EVENTS = 100_000
"""Calls and returns that are looked at for the function: 30 ms. A decorator or a parser of
arguments runs before it."""
_PARSERS = ("click", "typer", "fire", "absl", "hydra", "tyro")
"""Packages whose objects call a script's function with its arguments."""
_ONCE = re.compile(
    r"/torch/(?:utils/_contextlib|distributed/elastic/.*)\.py$|/contextlib\.py$"
    rf"|/(?:{'|'.join(_PARSERS)})/"
)
_as_names: list[tuple[FrameType, Container[str]]] = []


class LastCall:
    """Catches the frame of the function that a statement calls last.

    Args:
        paths: What the statement may call last (`called_last`).
        is_statement: Returns whether a frame runs the statement.

    Attributes:
        frame: The function's frame once it has begun; None without one.
        inner: Frames of functions that it has called and that failed, the innermost first.
    """

    def __init__(self, paths: Collection[str], is_statement: Callable[[FrameType], bool]) -> None:
        self.frame: FrameType | None = None
        self.inner: list[FrameType] = []
        self._paths = paths
        self._names = {path.rpartition(".")[2] for path in paths}
        self._is_statement = is_statement
        self._events = 0

    def begin(self, variables: Mapping[str, Any]) -> None:
        """Look for the function in what this thread runs now.

        Python calls `_on_event` up to the function's begin, and not while it computes: before
        Python 3.13 each call leaves a copy of a frame's variables in the frame. So nothing is done
        where the statement calls none of the user's functions.

        Args:
            variables: The namespace in which the statement runs.
        """
        if sys.getprofile() is None and any(is_users(path, variables) for path in self._paths):
            sys.setprofile(self._on_event)

    def end(self) -> None:
        """Stop looking for it; a frame that was found is kept."""
        if sys.getprofile() == self._on_event:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        self._events += 1
        try:
            if event == "call" and self._is_last(frame):
                self.frame = frame
        except Exception:  # noqa: BLE001 - Python would raise it in the user's code
            self._events = MOST_EVENTS
        if self.frame is not None or self._events >= MOST_EVENTS:
            sys.setprofile(None)

    def _is_last(self, frame: FrameType) -> bool:
        if frame.f_code.co_name not in self._names or is_library(frame.f_code.co_filename):
            return False
        caller = frame.f_back
        while caller is not None and calls_once(caller.f_code.co_filename):
            caller = caller.f_back
        return caller is not None and self._is_statement(caller)


def calls_once(file: str) -> bool:
    """Return whether a decorator or parser calls its function once.

    Others may call it again after it has failed, with its variables freed.
    """
    return _ONCE.search(file.replace("\\", "/")) is not None


def called_last(statement: ast.stmt, functions: Container[str]) -> frozenset[str]:
    """Return the dotted names of what a statement may call last.

    Empty without a call.

    Args:
        statement: The last statement.
        functions: Names of functions that the code defines itself. What is none of them may call
            its arguments: `sys.exit(main())`, `Fire(main)`.
    """
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Raise)):
        return frozenset()
    value = statement.exc if isinstance(statement, ast.Raise) else statement.value
    found = _called(value, functions) if isinstance(value, ast.Call) else ()
    return frozenset(path for path in found if path is not None)


def _called(value: ast.expr | None, functions: Container[str]) -> Iterator[str | None]:
    if isinstance(value, (ast.Name, ast.Attribute)):
        yield _path_of(value)
    if not isinstance(value, ast.Call):
        return
    path = None if isinstance(value.func, ast.Call) else _path_of(value.func)
    yield path
    if path is not None and path.rpartition(".")[2] in functions:
        return
    for argument in value.args:
        yield from _called(argument, functions)


def _path_of(value: ast.expr) -> str | None:
    """Return a dotted name, in which a call stands for its class.

    None for what is none.
    """
    if isinstance(value, ast.Name):
        return value.id
    if isinstance(value, ast.Call):
        return _path_of(value.func)
    if not isinstance(value, ast.Attribute):
        return None
    before = _path_of(value.value)
    return None if before is None else f"{before}.{value.attr}"


def users_function(value: Any) -> FunctionType | None:
    """Return the user's function that a value is, or None.

    Its decorators are left out. Nothing of the user's runs.
    """
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    while type(value) is FunctionType and "__wrapped__" in value.__dict__:
        value = value.__dict__["__wrapped__"]
    file = value.__code__.co_filename if type(value) is FunctionType else PACKAGE
    # nbmem's own stand in for torch's, and are in no library where it is developed.
    return None if file.startswith(PACKAGE) or is_library(file) else value


def value_of(path: str, variables: Mapping[str, Any]) -> Any:
    """Return what a dotted name is, without running the user's code."""
    name, *attributes = path.split(".")
    found: Any = variables.get(name)
    for attribute in attributes:
        found = getattr_static(found, attribute, None)
    return found


def is_users(path: str, variables: Mapping[str, Any]) -> bool:
    """Return whether a name is a user's function, or a parser for one."""
    found = value_of(path, variables)
    if users_function(found) is not None:
        return True
    package = str(namespace_of(type(found)).get("__module__", "")).partition(".")[0]
    return package in _PARSERS


@contextmanager
def as_names(
    frames: Sequence[FrameType], names: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], list[list[str]]]]:
    """Let the variables of functions be names for a while.

    Yields those to add, and which each function adds. A heap walk does not enter the functions'
    frames then: what a variable holds is no leftover of a traceback that leads there.

    Args:
        frames: The functions' frames, ended or running. A name is that of the first which has it.
        names: The script's or notebook's own names, which stay what they are.
    """
    added: dict[str, Any] = {}
    places, owned = [], []
    for frame in frames:
        found = locals_of(frame)
        known = {**added, **names}
        owned.append([name for name in found if name not in known])
        added.update((name, found[name]) for name in owned[-1])
        hidden = {name for name, value in found.items() if known.get(name, value) is not value}
        places.append((frame, hidden))
        del found, known
    _as_names[:] = places
    del places
    try:
        yield added, owned
    finally:
        _as_names.clear()
        added.clear()


def frames_of_names() -> list[tuple[FrameType, Container[str]]]:
    """Return the frames whose variables are names now.

    A heap walk does not enter them. With each are the variables that are no names, since the script
    or notebook uses the name for another object.
    """
    return _as_names.copy()
