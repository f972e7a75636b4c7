"""Attribute patches that are applied and undone together."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Patch:
    """A replaced attribute, while a virtual card is active.

    Attributes:
        target: Module or class.
        name: Attribute.
        value: What it is replaced by.
        is_hook: Whether it is one that programs set: what one of them has put there stays.
    """

    target: Any
    name: str
    value: Any
    is_hook: bool = False


class Patches:
    """Applied patches, with the attributes that they replaced.

    An attribute that was not there is removed again.
    """

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._hooks: dict[str, Any] = {}

    def apply(self, patches: list[Patch]) -> None:
        """Replace each attribute, in order; they are undone in reverse."""
        for patch in patches:
            # vars(), not getattr: an inherited attribute must be inherited again afterwards.
            before = vars(patch.target).get(patch.name, _MISSING)
            self._before.append((patch.target, patch.name, before))
            setattr(patch.target, patch.name, patch.value)
            if patch.is_hook:
                self._hooks[f"{patch.target.__name__}.{patch.name}"] = patch.value

    def undo(self) -> None:
        """Restore all attributes.

        A hook that a program has set meanwhile stays.
        """
        while self._before:
            target, name, before = self._before.pop()
            hook = self._hooks.pop(f"{target.__name__}.{name}", None) if self._hooks else None
            if hook is None or vars(target).get(name) is hook:
                _put(target, name, before)

    def replacement_of(self, original: Any) -> Any:
        """Return what replaces one of torch's functions.

        Without a replacement, the function itself.
        """
        for target, name, before in self._before:
            if before is original:
                return vars(target)[name]
        return original

    @contextlib.contextmanager
    def set_aside(self, targets: Collection[Any], *, keep: Collection[str]) -> Iterator[None]:
        """Restore the originals at some targets during a `with` block.

        Args:
            targets: Modules and classes.
            keep: Names that stay replaced.
        """
        ours = []
        for target, name, before in reversed(self._before):
            if any(target is one for one in targets) and name not in keep:
                ours.append((target, name, vars(target)[name]))
                _put(target, name, before)
        try:
            yield
        finally:
            for target, name, value in reversed(ours):
                setattr(target, name, value)

    def places(self) -> list[tuple[Any, str]]:
        """Return the target and name of all that is replaced now."""
        return [(target, name) for target, name, _ in self._before]


def _put(target: Any, name: str, before: Any) -> None:
    if before is _MISSING:
        delattr(target, name)
    else:
        setattr(target, name, before)


def patches_of(target: Any, names: dict[str, Any], *, only_existing: bool = False) -> list[Patch]:
    """Return patches of one target, by name."""
    return [
        Patch(target, name, value)
        for name, value in names.items()
        if not only_existing or hasattr(target, name)
    ]
