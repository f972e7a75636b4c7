"""Read what an object holds, bypassing all that a class can override.

No frame of nbmem's own may remain in a variable: `sys._current_frames()` holds the caller's. In a
local it creates a cycle that keeps everything alive that a walk has visited.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, TypeVar

from nbmem.core.runtime.interrupts import reraise_if_from_signal

T = TypeVar("T")

_MRO: Any = type.__dict__["__mro__"]
_NAMESPACE: Any = type.__dict__["__dict__"]
_NAME: Any = type.__dict__["__name__"]
_MODULE_NAMESPACE: Any = vars(ModuleType)["__dict__"]

_MAX_BITS = 1_000
_TRIES = 8
_OWN_STORE = 3
"""References to a frame's dictionary of locals that no other code holds: the frame's, ours, the
argument of getrefcount."""


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a class and its bases, bypassing its metaclass."""
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def is_a(kind: type, base: type) -> bool:
    """Return whether a class derives from another, bypassing metaclasses."""
    return type.__subclasscheck__(base, kind)


def name_of(kind: type) -> str:
    """Return a class's name, bypassing its metaclass."""
    found: str = _NAME.__get__(kind)
    return found


def namespace_of(kind: type) -> Mapping[str, Any]:
    """Return a class's own attributes, bypassing its metaclass."""
    found: Mapping[str, Any] = _NAMESPACE.__get__(kind)
    return found


def module_namespace(module: ModuleType) -> dict[str, Any]:
    """Return a module's globals, without the `__getattr__` of a lazy one."""
    found: dict[str, Any] = _MODULE_NAMESPACE.__get__(module)
    return found


def attributes_of(obj: object) -> dict[str, Any] | None:
    """Return the object's own `__dict__`; None if it has none."""
    return _attributes(obj, _dictionary_slot(type(obj)))


def first_of(container: Callable[[], Iterable[T]], most: int | None = None) -> list[T]:
    """Return the first members of what other threads may change meanwhile.

    With None all members are returned.

    One C call iterates a container without letting other threads run. They may run between the
    creation of an iterator and that call. Python then raises an error for a change, and the read is
    repeated.
    """
    for _ in range(_TRIES):
        try:
            return list(container() if most is None else islice(container(), most))
        except RuntimeError:
            continue
    return list(islice(container(), most))


def entries_of(kept: Any, most: int | None = None) -> list[tuple[Any, Any]]:
    """Return the first entries of a dictionary, safe against other threads.

    Methods that the dictionary's class overrides are bypassed.
    """
    return first_of(partial(dict.items, kept), most)


class Members:
    """A reader of attributes and slots that remembers the layout of classes.

    The classes are retained, or an id could refer to another one.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[type, Any, list[tuple[str, Any]]]] = {}

    def of(self, obj: object) -> tuple[dict[str, Any], Iterator[tuple[str, Any]]]:
        """Return an object's own attributes, and the contents of its slots.

        The slots are yielded as names and values.
        """
        kind = type(obj)
        known = self._known.get(id(kind))
        if known is None:
            known = self._known[id(kind)] = kind, _dictionary_slot(kind), _slots(kind)
        return _attributes(obj, known[1]) or {}, _slot_values(obj, known[2])


def is_writable(key: object) -> bool:
    """Return whether Python writes a key as text.

    It refuses integers of some thousand digits.
    """
    return type(key) is not int or key.bit_length() < _MAX_BITS


def _dictionary_slot(kind: type) -> Any | None:
    for base in mro_of(kind):
        slot = namespace_of(base).get("__dict__")
        if type(slot) is GetSetDescriptorType:
            return slot
    return None


def _attributes(obj: object, slot: Any | None) -> dict[str, Any] | None:
    try:
        found = None if slot is None else slot.__get__(obj)
    except Exception as err:  # noqa: BLE001 - a descriptor of another layout
        reraise_if_from_signal(err)
        return None
    return found if type(found) is dict else None


def _slots(kind: type) -> list[tuple[str, Any]]:
    return [
        (name, slot)
        for base in mro_of(kind)
        for name, slot in first_of(namespace_of(base).items)
        if type(slot) is MemberDescriptorType
    ]


def _slot_values(obj: object, slots: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, slot in slots:
        try:
            yield name, slot.__get__(obj)
        except AttributeError:  # an empty slot
            continue


def is_optimized(frame: FrameType) -> bool:
    """Return whether a frame is a function's, not a cell's or a module's.

    A cell's own variables are the notebook's names.
    """
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a function frame's variables by name, and leave no copy there.

    Empty for any other frame.

    Before Python 3.13 `f_locals` creates a dictionary that the frame retains, and every tensor in
    it, even after `traceback.clear_frames`. So entries that were not there before are removed
    again.
    """
    if not is_optimized(frame):
        return {}
    if sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for held in gc.get_referents(frame):
        if type(held) is dict and held and held.keys() <= own:
            return {**held}  # from an earlier read: a new one might free something
    store = frame.f_locals
    found = {name: store[name] for name in own if name in store}
    if sys.getrefcount(store) <= _OWN_STORE:
        for name in found:
            store.pop(name, None)
    return found
