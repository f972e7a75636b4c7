"""Encode the allocator's segments at every moment as few integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.report.exploration import GONE, MIXED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from nbmem.report.exploration import PoolHistory

MOST_SEGMENTS = 400
"""Segments that are drawn, the largest; the others are summed up in text."""


def pool_columns(history: PoolHistory) -> dict[str, Any]:
    """Return the allocator's segments and blocks at some moments.

    Bytes are in units of their greatest common divisor. A piece has its bytes and its kind; a used
    one also the number of its blocks; a mixed one also its free bytes. A segment's states are a
    flat list: moments since the previous state, and the tiling.
    """
    sizes = np.array([segment.size for segment in history.segments], np.int64)
    drawn = np.sort(np.argsort(-sizes, kind="stable")[:MOST_SEGMENTS]).tolist()
    unit = _unit(history, sizes)
    tilings: dict[tuple[int, ...], int] = {}
    index = {GONE: GONE}
    states = []
    for segment in drawn:
        steps, last, before = [], 0, GONE
        for moment, tiling in history.states[segment]:
            if tiling not in index:
                flat = tuple(_flat(history.tilings[tiling], unit))
                index[tiling] = tilings.setdefault(flat, len(tilings))
            if index[tiling] != before:
                steps += [moment - last, index[tiling]]
                last, before = moment, index[tiling]
        states.append(steps)
    segments = [history.segments[index] for index in drawn]
    return {
        "unit": unit,
        "segments": [
            [one.size // unit, one.small + 2 * one.expandable, one.stream, one.pool]
            for one in segments
        ],
        "tilings": [list(flat) for flat in tilings],
        "states": states,
    }


def _unit(history: PoolHistory, sizes: NDArray[np.int64]) -> int:
    columns = [sizes, *(tiling[:, (0, 3)].ravel() for tiling in history.tilings)]
    return max(int(np.gcd.reduce(np.concatenate(columns))), 1)


def _flat(tiling: NDArray[np.int64], unit: int) -> Iterator[int]:
    for size, kind, count, free in tiling.tolist():
        yield size // unit
        yield kind
        if kind >= 0:
            yield count
            if kind & MIXED:
                yield free // unit
