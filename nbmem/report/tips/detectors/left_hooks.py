"""Find objects that hooks keep which were registered again and again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from nbmem.core.session.variable_paths import parse_path

if TYPE_CHECKING:
    from nbmem.core.session.holders import HeldStorage
    from nbmem.report.tips.evidence import Evidence

MIN_HOOKS = 4
"""Hooks of one module that keep equal tensors: fewer may each have a purpose."""
_HOOKS = re.compile(r"(.+)\._(?:forward|backward)(?:_pre)?_hooks\[([^\]]+)\]")


class LeftHooks(NamedTuple):
    """Hooks of one module whose objects keep equal tensors.

    Attributes:
        module: The module, as code.
        hooks: How many of them keep a tensor of the most frequent form.
        storages: What all hooks of the module keep, and nothing else does.
    """

    module: str
    hooks: int
    storages: list[HeldStorage]


def left_hooks(e: Evidence) -> Iterator[LeftHooks]:
    """Yield the modules of which several hooks keep equal tensors."""
    found: dict[str, list[HeldStorage]] = defaultdict(list)
    forms: dict[str, Counter[str]] = defaultdict(Counter)
    for held in e.held:
        modules = {_hook_of(holder.path)[0] for holder in held.holders}
        if len(modules) == 1 and (module := modules.pop()):
            found[module].append(held)
            if not parse_path(held.name).by_graph and held.form:
                forms[module][held.form] += 1
    for module, storages in found.items():
        most = max(forms[module].values(), default=0)
        hooks = min(most, len({_hook_of(held.name) for held in storages}))
        if hooks >= MIN_HOOKS:
            yield LeftHooks(module, hooks, storages)


def _hook_of(path: str) -> tuple[str, str]:
    """Return the module and the number of the hook in a path, or no texts."""
    match = _HOOKS.match(parse_path(path).path)
    return (match[1], match[2]) if match else ("", "")
