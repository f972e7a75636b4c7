"""Fold the rows of a model's repeated blocks into one.

`blocks.0-5.fc` replaces six equal rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.report.estimate_results import LayerRow

AMOUNTS = (
    "parameters", "weights", "buffers", "gradients", "optimizer", "saved", "output",
    "forward_flops", "backward_flops",
)  # fmt: skip
"""Figures of a row, which add up where rows are folded."""


def folded(rows: Iterable[LayerRow]) -> list[LayerRow]:
    """Fold rows that differ only in the number of their block.

    A folded row has the sum of their figures. Only consecutive blocks are folded. The row is at the
    position of its first one.
    """
    found = list(rows)
    depth = max((row.name.count(".") + 1 for row in found), default=0)
    for place in range(depth):
        found = _folded_at(found, place)
    return found


def _folded_at(rows: Sequence[LayerRow], place: int) -> list[LayerRow]:
    """Fold rows by one part of their dotted names."""
    alike: dict[Any, dict[int, LayerRow]] = {}
    for row in rows:
        parts = row.name.split(".")
        if place < len(parts) and parts[place].isdecimal():
            alike.setdefault(_key(row, parts, place), {})[int(parts[place])] = row
    gone: set[str] = set()
    instead: dict[str, LayerRow] = {}
    for numbered in alike.values():
        for run in _runs(sorted(numbered)):
            if len(run) > 1:
                group = [numbered[number] for number in run]
                first = min(group, key=rows.index)
                instead[first.name] = _sum(group, place, run)
                gone |= {row.name for row in group}
    return [
        instead.get(row.name, row) for row in rows if row.name in instead or row.name not in gone
    ]


def _key(row: LayerRow, parts: Sequence[str], place: int) -> tuple[Any, ...]:
    """Return what rows that can be folded have in common."""
    amounts = tuple(getattr(row, name) for name in AMOUNTS)
    return (*parts[:place], None, *parts[place + 1 :], row.kind, row.formula, amounts)


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split numbers into runs without a gap."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _sum(group: Sequence[LayerRow], place: int, run: Sequence[int]) -> LayerRow:
    first = group[0]
    parts = first.name.split(".")
    parts[place] = f"{run[0]}-{run[-1]}"
    amounts: dict[str, Any] = {
        name: None if getattr(first, name) is None else sum(getattr(row, name) for row in group)
        for name in AMOUNTS
    }
    times, _, kind = first.kind.rpartition(" x ")
    count = int(times or 1) * len(group)
    return dataclasses.replace(first, name=".".join(parts), kind=f"{count} x {kind}", **amounts)
