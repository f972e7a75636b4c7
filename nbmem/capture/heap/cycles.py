"""Find the reference by which an object leads back to itself."""

from __future__ import annotations

import gc
from collections import deque
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

from nbmem.capture.interpreter.class_kinds import is_node
from nbmem.capture.interpreter.object_members import Members, entries_of, is_a, locals_of, name_of
from nbmem.core.session.tensor_names import LOCAL

MAX_OBJECTS = 2_000
"""Objects that are visited; a circle through more of them is not found."""
_ENDS = (type, ModuleType, CodeType, BuiltinFunctionType)
"""Classes whose objects lead to everything, or to nothing of one object."""
_BETWEEN = (CellType, MethodType, TracebackType)
"""Classes whose objects lie between two that have a name."""
_CONTAINERS = frozenset(map(id, (dict, list, tuple, set, frozenset, deque)))


def closing_reference(obj: object) -> str | None:
    """Return the attribute by which an object refers to itself, or None.

    `Net.act` is an attribute of any Net, `ctx.y of Exp` of an autograd Function's context, `x
    closed over by f()` a variable of a function.

    Of the shortest circle's attributes it is the last one that holds a single object: `Node.parent`
    rather than `Node.children`.
    """
    circle = _shortest_circle(obj)
    if circle is None:
        return None
    members = Members()
    found: list[tuple[bool, str]] = []
    for index, owner in enumerate(circle):
        name = _name_of_step(members, owner, circle[index + 1 :] + circle[: index + 1])
        if name is not None:
            found.append(name)
    single = [text for is_single, text in found if is_single]
    named = single or [text for _, text in found]
    return named[-1] if named else None


def _shortest_circle(obj: object) -> list[Any] | None:
    """Return the objects on the shortest way from an object back to it."""
    start = id(obj)
    came_from: dict[int, tuple[Any, int | None]] = {start: (obj, None)}
    queue = deque([obj])
    while queue and len(came_from) < MAX_OBJECTS:
        at = queue.popleft()
        for inner in _referents(at):
            if inner is obj:
                return _way_to(came_from, id(at))
            if id(inner) not in came_from and gc.is_tracked(inner):
                came_from[id(inner)] = inner, id(at)
                queue.append(inner)
    return None


def _way_to(came_from: dict[int, tuple[Any, int | None]], last: int) -> list[Any]:
    way: list[Any] = []
    at: int | None = last
    while at is not None:
        obj, at = came_from[at]
        way.append(obj)
    return way[::-1]


def _referents(obj: Any) -> list[Any]:
    kind = type(obj)
    if kind is FunctionType:  # its globals lead everywhere
        own = obj.__closure__, obj.__defaults__, obj.__kwdefaults__, obj.__dict__
        return [part for part in own if part is not None]
    if kind is FrameType:
        return list(locals_of(obj).values())
    return [] if any(is_a(kind, end) for end in _ENDS) else gc.get_referents(obj)


def _name_of_step(members: Members, owner: Any, after: list[Any]) -> tuple[bool, str] | None:
    """Return an owner's name for the object that follows on a circle.

    Also returns whether it is a single object. None if the owner is a container.
    """
    kind = type(owner)
    if kind is FunctionType:
        cells = zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=False)
        cell = next((one for one in after if type(one) is CellType), None)
        name = next((name for name, one in cells if one is cell), None)
        # An attribute that holds the function is the better name.
        return None if name is None else (False, f"{name} closed over by {owner.__name__}()")
    if kind is FrameType:
        named = locals_of(owner).items()
        name = next((name for name, value in named if value is after[0]), None)
        return None if name is None else (True, f"{LOCAL}{name} of {owner.f_code.co_name}()")
    if id(kind) in _CONTAINERS or kind in _BETWEEN:
        return None
    own, slots = members.of(owner)
    entries = [*entries_of(own), *slots]
    for follower in after[:3]:
        if follower is own:
            continue
        for name, value in entries:
            if value is follower and type(name) is str:
                return _written(kind, name, value, after)
        if id(type(follower)) not in _CONTAINERS:
            break
    return None


def _written(kind: type, name: str, value: Any, after: list[Any]) -> tuple[bool, str]:
    is_single = id(type(value)) not in _CONTAINERS
    if name in {"_modules", "_parameters", "_buffers"} and is_a(type(value), dict):
        at = next(i for i, one in enumerate(after) if one is value)
        follower = after[at + 1]
        inner = next((key for key, one in entries_of(value) if one is follower), None)
        name, is_single = inner if type(inner) is str else name, False
    if is_node(kind):
        return is_single, f"ctx.{name} of {name_of(kind).removesuffix('Backward')}"
    return is_single, f"{name_of(kind)}.{name}"
