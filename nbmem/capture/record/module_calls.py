"""Convert hook events to named intervals of module and optimizer calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.session import Calls, CounterSamples
from nbmem.core.session.tensor_names import STEP

if TYPE_CHECKING:
    from nbmem.capture.record.hook_events import HookEvent
    from nbmem.core.arrays import Ints

MAX_CALLS = 200_000
"""Calls of a recording, the latest: as many as there are phases."""
_MODULES = ("forward", "inference")


def calls_of(
    hook_events: Sequence[HookEvent], name_of: Callable[[int], str | None], names: dict[str, int]
) -> Ints:
    """Return the calls of a recording, in the order in which they returned.

    Args:
        hook_events: The hook events.
        name_of: The name of a module or an optimizer, by the key of its hook events.
        names: Collects the texts and maps them to indices.

    Returns:
        For each call the counter sample at its beginning (NOT_KNOWN if none was taken), the one at
        its end, and the index of its name; shape (calls, 3). At most the latest MAX_CALLS.
    """
    begun: dict[tuple[int, bool, int], int] = {}
    found: list[tuple[int, int, int]] = []
    for hook_event in hook_events:
        step = hook_event.kind == "optimizer"
        if not step and hook_event.kind not in _MODULES:
            continue
        key = hook_event.thread, step, hook_event.key
        if hook_event.begins:
            begun[key] = hook_event.sample
            continue
        first, name = begun.pop(key, NOT_KNOWN), name_of(hook_event.key)
        if name is not None:
            text = f"{name}{STEP}" if step else name
            found.append((first, hook_event.sample, names.setdefault(text, len(names))))
    return np.array(found[-MAX_CALLS:], np.int64).reshape(-1, 3)


def placed(calls: Ints, counter_samples: CounterSamples) -> Calls:
    """Replace counter samples by positions in one card's events."""
    first, last, name = calls.T
    begun = np.where(first == NOT_KNOWN, NOT_KNOWN, counter_samples.position[first])
    return Calls(first=begun, last=counter_samples.position[last], name=name.copy())
