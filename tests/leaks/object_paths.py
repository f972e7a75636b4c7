"""Name objects by their path of references from the modules."""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections.abc import Iterable
from typing import Any


def foreign_references(package: str, *others: str) -> list[str]:
    """Find objects of a package that foreign references lead to.

    Args:
        package: Its functions and instances are looked for; its classes may be known anywhere.
        others: Packages that may have them.
    """
    ours = (package, *others)
    found: list[str] = []
    seen: dict[int, tuple[Any, int | None]] = {id(sys.modules): (sys.modules, None)}
    level: list[Any] = []
    for name, module in sys.modules.items():
        seen[id(module)] = module, id(sys.modules)
        if name.partition(".")[0] not in ours:
            level.append(module)
    while level:
        following = []
        for obj in level:
            for referent in gc.get_referents(obj):
                if id(referent) in seen or not gc.is_tracked(referent):
                    continue
                seen[id(referent)] = referent, id(obj)
                if _package_of(referent) == package:
                    if not issubclass(type(referent), type):
                        found.append(_way(referent, seen))
                elif _package_of(referent) not in others:
                    following.append(referent)
        level = following
    return found


def _package_of(obj: Any) -> str | None:
    kind = type(obj)
    function = kind in {types.FunctionType, types.MethodType} or issubclass(kind, type)
    module = obj.__module__ if function else kind.__module__
    return module.partition(".")[0] if isinstance(module, str) else None


def paths_to(wanted: Iterable[int]) -> dict[int, str]:
    """Return the shortest path of names from a module to each object."""
    missing = set(wanted)
    ways = {address: f"an object at {address:#x}" for address in missing}
    seen: dict[int, tuple[Any, int | None]] = {id(sys.modules): (sys.modules, None)}
    level: list[Any] = [sys.modules] if missing else []
    while level and missing:
        following = []
        for obj in level:
            for referent in gc.get_referents(obj):
                if id(referent) not in seen and (
                    gc.is_tracked(referent) or id(referent) in missing
                ):
                    seen[id(referent)] = referent, id(obj)
                    following.append(referent)
                    if id(referent) in missing:
                        missing.discard(id(referent))
                        ways[id(referent)] = _way(referent, seen)
        level = following
    for obj in gc.get_objects() if missing else ():
        if id(obj) in missing:
            ways[id(obj)] = f"an object that no module leads to: {_words(obj)}"
    return ways


def _way(obj: Any, seen: dict[int, tuple[Any, int | None]]) -> str:
    chain = [obj]
    while (holder := seen[id(chain[-1])][1]) is not None:
        chain.append(seen[holder][0])
    chain.reverse()
    steps = "".join(_step(holder, held) for holder, held in itertools.pairwise(chain))
    return f"{steps.lstrip('.')} ({_words(obj)})"


def _step(holder: Any, held: Any) -> str:
    if isinstance(holder, dict):
        name = next((key for key, value in dict.items(holder) if value is held), None)
        return f".{name}" if isinstance(name, str) else f"[{type(name).__name__}]"
    of_class = issubclass(type(holder), type) and isinstance(held, dict)
    if of_class or held is getattr(holder, "__dict__", None):
        return ""
    slots = (name for kind in type(holder).__mro__ for name in vars(kind).get("__slots__", ()))
    name = next((name for name in slots if getattr(holder, name, None) is held), None)
    return f".{name}" if name else f"<{type(held).__name__}>"


def _words(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None)
    return f"{type(obj).__name__} {name}" if isinstance(name, str) else type(obj).__name__
