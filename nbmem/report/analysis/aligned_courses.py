"""Align the events of two recordings on one axis, by their common phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

    Key = tuple[int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """Memory after each event of a recording, or of one of its steps.

    Attributes:
        allocated: Allocated bytes, shape (events + 1,); the first is the state before them.
        reserved: Reserved bytes, shape (events + 1,).
        phases: Outermost phases as (first event, last event, name, step); steps count from the
            first one here.
    """

    allocated: Ints
    reserved: Ints
    phases: tuple[tuple[int, int, str, int | None], ...]


def course(card_ledger: CardLedger, first: int, last: int) -> Course:
    """Read the events from `first` to `last` of a card."""
    inside = [
        (low, high, span.name, span.step)
        for _, span in card_ledger.phases.spans
        for low, high in [card_ledger.bounds(span)]
        if first <= low and high <= last
    ]
    start = next((step for *_, step in inside if step is not None), 0)
    return Course(
        allocated=card_ledger.allocated[first : last + 1],
        reserved=card_ledger.reserved[first : last + 1],
        phases=tuple(
            (low - first, high - first, name, None if step is None else step - start)
            for low, high, name, step in inside
        ),
    )


def aligned(a: Course, b: Course) -> tuple[Ints, Ints]:
    """Return the position of each event of two courses on one axis.

    A phase that both courses have begins and ends at the same position, and is as long as in the
    longer one. After the last such phase, each event takes one unit.

    Returns:
        Positions of each side's events, ascending from 0, shapes as of `allocated`.
    """
    ends = (len(a.allocated) - 1, len(b.allocated) - 1)
    pairs = [(0, 0), *_common_bounds(a, b)]
    at = np.cumsum([0, *(max(q[0] - p[0], q[1] - p[1]) for p, q in pairwise(pairs))])
    positions = []
    for side, end in enumerate(ends):
        bounds = np.array([pair[side] for pair in pairs], np.int64)
        rest = end - int(bounds[-1])
        stretched = np.interp(
            np.arange(end + 1), [*bounds, end], [*at, int(at[-1]) + rest] if rest else [*at, at[-1]]
        )
        positions.append(np.rint(stretched).astype(np.int64))
    return positions[0], positions[1]


def _common_bounds(a: Course, b: Course) -> Iterator[tuple[int, int]]:
    """Yield where phases of both sides begin and end, ascending on both sides."""
    phases_b = dict(_keyed(b.phases))
    last_end = (0, 0)
    for key, bounds_a in _keyed(a.phases):
        bounds_b = phases_b.get(key)
        if bounds_b is None or bounds_a[0] < last_end[0] or bounds_b[0] < last_end[1]:
            continue
        yield from zip(bounds_a, bounds_b, strict=True)
        last_end = (bounds_a[1], bounds_b[1])


def _keyed(
    phases: Sequence[tuple[int, int, str, int | None]],
) -> Iterator[tuple[Key, tuple[int, int]]]:
    """Yield the events of each phase, by step, name and count of such phases."""
    seen: dict[tuple[int, str], int] = {}
    for first, last, name, step in phases:
        kind = (-1 if step is None else step, name)
        seen[kind] = seen.get(kind, -1) + 1
        yield (*kind, seen[kind]), (first, last)
