"""List the starting points of a heap walk: all that can name a tensor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType, TracebackType
from typing import Any

from nbmem.capture.interpreter.class_kinds import FOREIGN
from nbmem.capture.interpreter.last_call import frames_of_names
from nbmem.capture.interpreter.notebook_cells import cell_of, running_shell
from nbmem.capture.interpreter.object_members import (
    attributes_of,
    is_optimized,
    locals_of,
    module_namespace,
    name_of,
    namespace_of,
)
from nbmem.capture.interpreter.plain_values import entries_with_tensors, leading_names
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.source_files import is_library
from nbmem.core.session.tensor_names import LOCAL

OUT = "Out"
"""The root of all results that IPython retains: `%nbmem free out` releases them together."""
_RESULTS = ("_", "__", "___")
_LONGEST = 20
"""Limit of characters of a name with a cell's number."""
_OF_HISTORY = frozenset((*_RESULTS, "In", "Out", "_oh", "_ih", "_dh"))
VALUE = "the statement's value"
"""Name among the notebook's names for the result of a traced statement that has no variable."""
_NOT_USERS = (*FOREIGN, "asyncio", "threading", "runpy", "nbclient", "concurrent", "pytest")


@dataclass(frozen=True, slots=True)
class Place:
    """One object at which a heap walk starts.

    Attributes:
        kind: What keeps the object alive there.
        root: The name of what must be released.
        label: The start of the path.
        suffix: The end of the path ("in the traceback of In [7]"), or "".
        obj: The object.
    """

    kind: HolderKind
    root: str
    label: str
    suffix: str
    obj: Any


def places(namespace: Mapping[str, Any]) -> Iterator[Place]:
    """Yield every starting point of a heap walk.

    They are IPython's results, the notebook's names, tracebacks, frames and modules, in
    this order.
    """
    shell = running_shell()
    yield from _results(shell)
    yield from _names(namespace)
    yield from _tracebacks(shell)
    yield from _frames()
    yield from _modules(namespace)


def skipped_objects(namespace: Mapping[str, Any]) -> Iterator[object]:
    """Yield the dictionaries and frames that a heap walk must not enter.

    Their values are starting points of their own, or contain no tensor of the notebook.
    """
    yield namespace
    yield from (frame for frame, _ in frames_of_names())
    for module in list(sys.modules.values()):
        if isinstance_of_module(module):
            yield module_namespace(module)
    shell = running_shell()
    if shell is not None:
        yield shell.user_ns
        yield shell.user_ns.get("Out")
        yield shell.user_ns_hidden


def isinstance_of_module(obj: object) -> bool:
    """Return whether an object is a module, without reading `__class__`.

    Lazy modules are included.
    """
    return issubclass(type(obj), ModuleType)


def _names(namespace: Mapping[str, Any]) -> Iterator[Place]:
    shell = running_shell()
    for name, value in leading_names(namespace):
        if type(name) is not str or (name[:2] == name[-2:] == "__") or _is_ipythons(name, shell):
            continue
        kind = HolderKind.FRAME if name == VALUE else HolderKind.NAME
        yield from _named(kind, name, name, value)


def _named(kind: HolderKind, root: str, label: str, value: Any) -> Iterator[Place]:
    """Yield a name's value, or the attributes of a class of the user's."""
    if issubclass(type(value), type):
        if is_users_class(value):
            for attribute, inner in list(namespace_of(value).items()):
                yield Place(kind, root, f"{label}.{attribute}", "", inner)
    else:
        yield Place(kind, root, label, "", value)


def is_users_class(kind: type) -> bool:
    """Return whether a class is the user's own."""
    module = namespace_of(kind).get("__module__")
    return module == "__main__" or (
        type(module) is str and is_users_module(sys.modules.get(module))
    )


def _is_ipythons(name: str, shell: Any) -> bool:
    """Return whether IPython put a name into the namespace."""
    if shell is None:
        return False
    if name in _OF_HISTORY or name in shell.user_ns_hidden:
        return True
    kept = shell.user_ns.get("Out")
    numbered = name[:1] == "_" and name[1:].isdecimal() and len(name) < _LONGEST
    return numbered and issubclass(type(kept), dict) and int(name[1:]) in kept


def _results(shell: Any) -> Iterator[Place]:
    """Yield `Out`, `_` and the copies of them that IPython keeps elsewhere."""
    if shell is None:
        return
    kept = shell.user_ns.get("Out")
    for number, value in entries_with_tensors(kept.items()) if issubclass(type(kept), dict) else ():
        yield Place(HolderKind.OUT, OUT, f"{OUT}[{number}]", "", value)
        for store in (shell.user_ns, shell.user_ns_hidden):
            yield Place(HolderKind.UNDERSCORE, OUT, f"_{number}", "", store.get(f"_{number}"))
    display = attributes_of(shell.displayhook) or {}
    for name in _RESULTS:
        for store in (shell.user_ns, shell.user_ns_hidden, display):
            yield Place(HolderKind.UNDERSCORE, OUT, name, "", store.get(name))
    result = attributes_of(getattr(shell, "last_execution_result", None)) or {}
    yield Place(HolderKind.UNDERSCORE, OUT, "the last cell's result", "", result.get("result"))


def _tracebacks(shell: Any) -> Iterator[Place]:
    """Yield the exceptions that Python and IPython keep of failed cells."""
    for obj in kept_exceptions(shell):
        root = f"the traceback of {cell_or_class(obj)}"
        yield Place(HolderKind.TRACEBACK, root, "the exception", f"in {root}", obj)


def kept_exceptions(shell: Any) -> list[Any]:
    """Return the exceptions and tracebacks kept after their cell, each once.

    A traceback whose exception is among them is not listed by itself.
    """
    found: list[Any] = [
        getattr(sys, name, None) for name in ("last_exc", "last_value", "last_traceback")
    ]
    found.append(sys.exc_info()[1])
    if shell is not None:
        for keeper in ("InteractiveTB", "SyntaxTB", "CustomTB"):
            kept = attributes_of(getattr(shell, keeper, None)) or {}
            found += [kept.get(name) for name in ("evalue", "tb", "last_syntax_error")]
        result = attributes_of(getattr(shell, "last_execution_result", None)) or {}
        found += [result.get("error_before_exec"), result.get("error_in_exec")]
    errors = {id(one): one for one in found if issubclass(type(one), BaseException)}
    theirs = [one.__traceback__ for one in errors.values()]
    tracebacks = {
        id(one): one
        for one in found
        if type(one) is TracebackType and not any(one is known for known in theirs)
    }
    return [*errors.values(), *tracebacks.values()]


def cell_or_class(obj: Any) -> str:
    """Return the cell in which an exception was raised, or else its class.

    `obj` may be its traceback.
    """
    traceback = obj if type(obj) is TracebackType else obj.__traceback__
    while traceback is not None:
        cell = cell_of(traceback.tb_frame.f_code.co_filename)
        if cell is not None:
            return cell
        traceback = traceback.tb_next
    return "an exception" if type(obj) is TracebackType else name_of(type(obj))


def _frames() -> Iterator[Place]:
    """Yield the locals of functions that run now, in all threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    this_thread = threading.get_ident()
    for ended, hidden in frames_of_names():
        yield from _variables(ended, HolderKind.FRAME, only=hidden)
    for ident, frame in _innermost(this_thread):
        where = "" if ident == this_thread else f"in thread {names.get(ident, ident)!r}"
        kind = HolderKind.FRAME if ident == this_thread else HolderKind.THREAD
        inner: FrameType | None = frame
        while inner is not None:
            named = any(inner is one for one, _ in frames_of_names())
            if is_optimized(inner) and not named and module_of(inner) not in _NOT_USERS:
                yield from _variables(inner, kind, where)
            inner = inner.f_back


def _variables(
    frame: FrameType, kind: HolderKind, where: str = "", only: Container[str] | None = None
) -> Iterator[Place]:
    """Yield a function's variables, those of some names or all."""
    root = f"{frame.f_code.co_name}() {where}".rstrip()
    for name, value in locals_of(frame).items():
        if only is None or name in only:
            yield Place(kind, root, f"{LOCAL}{name}", f"of {root}", value)


def _innermost(this_thread: int) -> list[tuple[int, FrameType]]:
    """Return the innermost frame of each thread, without nbmem's own.

    nbmem's own frames must not be in a variable when this function ends. That would be a reference
    cycle, which keeps alive everything that the walk holds.
    """
    frames = sys._current_frames()  # noqa: SLF001 - the documented way
    frames.pop(this_thread, None)
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the documented way
    while frame is not None and module_of(frame) == "nbmem":
        frame = frame.f_back
    return [*([(this_thread, frame)] if frame is not None else []), *frames.items()]


def module_of(frame: FrameType) -> str:
    """Return the package whose code a frame runs."""
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if type(name) is str else ""


def _modules(namespace: Mapping[str, Any]) -> Iterator[Place]:
    """Yield the globals of the user's own modules."""
    # A module such as a script may have two names. The namespace may be a copy of the shell's.
    begun = {id(namespace), id(getattr(running_shell(), "user_ns", None))}
    for name, module in list(sys.modules.items()):
        if is_users_module(module):
            inside = module_namespace(module)
            if id(inside) in begun:
                continue
            begun.add(id(inside))
            for label, value in entries_with_tensors(inside.items()):
                yield from _named(HolderKind.MODULE, f"module {name}", f"{name}.{label}", value)


def is_users_module(module: object) -> bool:
    """Return whether an object is a module of the user's own."""
    return isinstance_of_module(module) and is_users(module_namespace(module))  # type: ignore[arg-type]


def is_users(inside: Mapping[str, Any]) -> bool:
    """Return whether a module's globals belong to the user's own code."""
    file, name = inside.get("__file__"), inside.get("__name__")
    return (
        type(file) is str
        and type(name) is str
        and not is_library(file)
        and name.partition(".")[0] not in _NOT_USERS
    )
