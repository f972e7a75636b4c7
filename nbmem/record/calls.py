"""What the loop called, from which event to which: the hooks' turns under their things' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.names import STEP
from nbmem.core.session import NOT_KNOWN, Calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.core.session import Marks
    from nbmem.record.turn import Turn

MAX_CALLS = 200_000
"""Calls of a recording, the latest: as many as there are phases."""
_MODULES = ("forward", "inference")


def calls_of(
    turns: Sequence[Turn],
    marks: Marks,
    name_of: Callable[[int], str | None],
    names: dict[str, int],
) -> Calls:
    """One card's calls.

    Args:
        turns: What the hooks told.
        marks: The card's marks.
        name_of: The name of a module or an optimizer, by the key of its turns.
        names: Collects the texts, text to index.
    """
    begun: dict[tuple[int, bool, int], int] = {}
    found: list[tuple[int, int, int]] = []
    for turn in turns:
        step = turn.kind == "optimizer"
        if not step and turn.kind not in _MODULES:
            continue
        key = turn.thread, step, turn.key
        if turn.begins:
            begun[key] = turn.mark
            continue
        first, name = begun.pop(key, None), name_of(turn.key)
        if name is not None:
            text = f"{name}{STEP}" if step else name
            position = NOT_KNOWN if first is None else int(marks.position[first])
            row = position, int(marks.position[turn.mark]), names.setdefault(text, len(names))
            found.append(row)
    columns = np.array(found[-MAX_CALLS:], np.int64).reshape(-1, 3).T
    return Calls(first=columns[0].copy(), last=columns[1].copy(), name=columns[2].copy())
