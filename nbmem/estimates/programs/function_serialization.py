"""Pickle functions and classes of a notebook by value.

Another process could not import them. A function is pickled as its code, its defaults and its
closure. Its globals are the namespace that it is unpickled into. A class is pickled as its bases
and its attributes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import marshal
import sys
import threading
import types
import weakref
from collections.abc import Collection, Iterator
from typing import Any

_SKIPPED = frozenset({"__dict__", "__weakref__", "_abc_impl", "__slotnames__", "__module__"})
_SENTINELS = {
    id(getattr(dataclasses, name)): name
    for name in ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")
    if hasattr(dataclasses, name)
}
"""Compared by identity in the standard library, so that a copy would be something else."""
_LOCKS = {type(threading.Lock()): "Lock", type(threading.RLock()): "RLock"}

_globals: list[dict[str, Any]] = []


@contextlib.contextmanager
def unpickling_globals(namespace: dict[str, Any]) -> Iterator[None]:
    """Set the globals that functions get while they are unpickled."""
    _globals.append(namespace)
    try:
        yield
    finally:
        _globals.pop()


def reduce(value: Any, homes: Collection[str], mentioned: set[str]) -> Any:
    """Return pickle's reduction of a value, or NotImplemented.

    NotImplemented leaves the value to pickle's own rules.

    Args:
        value: The next value to pickle.
        homes: Modules whose functions and classes the other process cannot import.
        mentioned: Collects the global names that those use.
    """
    if isinstance(value, types.ModuleType):
        if value.__name__ in homes:
            raise TypeError(f"cannot copy the module {value.__name__} itself")
        return importlib.import_module, (value.__name__,)
    if isinstance(value, types.FunctionType):
        return _function(value, homes, mentioned)
    if isinstance(value, type) and (value.__module__ in homes or "<locals>" in value.__qualname__):
        return _class(value, mentioned)
    return _small(value)


def _small(value: Any) -> Any:  # noqa: PLR0911 - one for each type
    """Reduce plain values of types that pickle refuses."""
    if id(value) in _SENTINELS:
        return getattr, (dataclasses, _SENTINELS[id(value)])
    if type(value) in _LOCKS:
        return getattr(threading, _LOCKS[type(value)]), ()
    if isinstance(value, types.MappingProxyType):
        return _proxy, (dict(value),)  # its class has no name that pickle could find
    if isinstance(value, (staticmethod, classmethod)):
        return type(value), (value.__func__,)
    if isinstance(value, property):
        return property, (value.fget, value.fset, value.fdel, value.__doc__)
    if type(value) is weakref.ref:
        target = value()
        return (weakref.ref, (target,)) if target is not None else (_dead, ())
    return NotImplemented


def _proxy(mapping: dict[Any, Any]) -> Any:
    return types.MappingProxyType(mapping)


def _dead() -> Any:
    """Stand in for a weak reference whose target is gone."""
    return lambda: None


def _function(function: types.FunctionType, homes: Collection[str], mentioned: set[str]) -> Any:
    # Not __module__: functools.wraps gives a library's wrapper the module of what it wraps.
    module = function.__globals__.get("__name__") or "__main__"
    # But a method that dataclass() wrapped is its class's, and that travels.
    foreign = module not in homes and function.__module__ not in homes
    if foreign and "<locals>" not in function.__qualname__ and _importable(function):
        return NotImplemented
    theirs = module not in homes  # a closure made by a library's function has that library's module
    if not theirs:
        mentioned |= _names(function.__code__)
    code = function.__code__
    contents = [_content(cell) for cell in function.__closure__ or ()]
    state = {
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "dict": function.__dict__,
        "qualname": function.__qualname__,
        "doc": function.__doc__,
        "module": function.__module__,
        "contents": contents,
    }
    made = (marshal.dumps(code), function.__name__, module, theirs, len(contents))
    return _make_function, made, state, None, None, _fill_function


def _importable(function: types.FunctionType) -> bool:
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _content(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty: a function that is not defined yet
        return ()


def _names(code: types.CodeType) -> set[str]:
    """Return every name that code and its nested code may look up."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*(_names(one) for one in inner))


def _make_function(code: bytes, name: str, module: str, theirs: bool, cells: int) -> Any:  # noqa: FBT001
    namespace = vars(importlib.import_module(module)) if theirs else _globals[-1]
    closure = tuple(types.CellType() for _ in range(cells)) if cells else None
    return types.FunctionType(marshal.loads(code), namespace, name, None, closure)  # noqa: S302 - our own process wrote it


def _fill_function(function: Any, state: dict[str, Any]) -> None:
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__dict__.update(state["dict"])
    function.__qualname__ = state["qualname"]
    function.__doc__ = state["doc"]
    function.__module__ = state["module"]
    for cell, content in zip(function.__closure__ or (), state["contents"], strict=True):
        if content:
            cell.cell_contents = content[0]


def _class(cls: type, mentioned: set[str]) -> Any:
    if issubclass(cls, enum.Enum):
        members = [(name, member.value) for name, member in cls.__members__.items()]
        return _make_enum, (cls.__bases__[-1], cls.__name__, members, cls.__module__)
    slots = cls.__dict__.get("__slots__", ())
    skipped = {*_SKIPPED, *([slots] if isinstance(slots, str) else slots)}
    defined = {name: value for name, value in vars(cls).items() if name not in skipped}
    del mentioned  # its methods add the names they use when they are pickled
    made = (type(cls), cls.__name__, cls.__bases__, cls.__module__, slots)
    return _make_class, made, defined, None, None, _fill_class


def _make_class(kind: Any, name: str, bases: tuple[type, ...], module: str, slots: Any) -> type:
    def body(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = module
        if slots:
            namespace["__slots__"] = slots

    return types.new_class(name, bases, {"metaclass": kind}, body)


def _make_enum(base: Any, name: str, members: list[tuple[str, Any]], module: str) -> Any:
    return base(name, members, module=module)


def _fill_class(cls: type, defined: dict[str, Any]) -> None:
    for name, value in defined.items():
        with contextlib.suppress(AttributeError, TypeError):  # read-only, made by the class itself
            setattr(cls, name, value)
