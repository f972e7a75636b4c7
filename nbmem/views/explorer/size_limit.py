"""Thin the explorer's data to the size that a notebook may keep.

A saved report has fewer moments than a live one, which queries the kernel, and than an exported
page, which has all. It retains the extremes of every interval, and the first, highest and last
moment of every phase. Their figures are exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import ACTIVE, Category
from nbmem.report.exploration import GONE, Details, Lifetime, PoolHistory
from nbmem.views.explorer.output import explorer_output

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.report.model import Report, Timeline

MAX_CHARACTERS = 14_500
"""Characters of a report's data in a notebook; fewer if the text is long."""
BINS = (200, 140, 100, 70, 50, 35, 25, 12, 6)
"""Numbers of timeline intervals; the first whose output is small enough is used."""
MAX_CODE = 120
"""Lines of recorded code up to which a notebook contains all of it."""
LIVES = 3
"""Allocations listed individually, per interval."""


def saved_output(
    report: Report, cells: Sequence[CellDelta] = (), most: int = MAX_CHARACTERS
) -> dict[str, Any]:
    """Return explorer output that is thinned until it is small enough.

    Args:
        report: The report.
        cells: The notebook's history, oldest first.
        most: Limit on its characters; output with the fewest moments may exceed it.
    """
    output = explorer_output(report, cells)
    if _size(output) <= most:
        return output
    found: dict[int, dict[str, Any]] = {}

    def is_small(bins: int) -> bool:
        found[bins] = explorer_output(thinned(report, bins), cells)
        return _size(found[bins]) <= most

    at = bisect_left(BINS[:-1], 1, key=is_small)
    return found.get(BINS[at]) or explorer_output(thinned(report, BINS[at]), cells)


def _size(output: Mapping[str, Any]) -> int:
    return len(output["data"]) + len(output["times"])


def thinned(report: Report, bins: int) -> Report:
    """Return a report with fewer moments and fewer single allocations.

    Args:
        report: The report; short curves keep all moments.
        bins: Intervals of the timeline that retain their extremes.
    """
    if report.lines is not None:
        report = replace(report, lines=report.lines.shortened(MAX_CODE, 1))
    moments, details = report.timeline, report.details
    rows = _rows(report, bins)
    if len(rows) >= len(moments.event):
        rows = np.arange(len(moments.event))
    return replace(
        report,
        timeline=replace(
            moments,
            t_ns=moments.t_ns[rows],
            event=moments.event[rows],
            held=moments.held[rows],
            reserved=moments.reserved[rows],
            parts=None if moments.parts is None else moments.parts[rows],
        ),
        details=details and _fewer(details, moments.event[rows], rows, LIVES * bins),
    )


def _rows(report: Report, bins: int) -> Ints:
    """Return the rows of the moments to keep, ascending."""
    moments = report.timeline
    count = len(moments.event)
    allocated = _allocated(moments)
    peak = int(np.searchsorted(moments.event, report.peak.at.event))
    kept = {0, count - 1, min(peak, count - 1)}
    for low, high in pairwise(np.linspace(0, count, bins + 1).astype(int).tolist()):
        if low < high:
            inside = allocated[low:high]
            kept |= {low + int(inside.argmax()), low + int(inside.argmin())}
    phases = report.details.phases if report.details is not None else ()
    for first, last in phases if len(phases) <= bins else ():
        low, high = np.searchsorted(moments.event, (first, last)).tolist()
        high = min(high, count - 1)
        kept |= {low, high, low + int(allocated[low : high + 1].argmax())} if low <= high else set()
    return np.array(sorted(kept), np.int64)


def _allocated(moments: Timeline) -> Ints:
    held: Ints = moments.held[:, list(ACTIVE)].sum(axis=1) - moments.held[:, Category.PENDING]
    return held


def _fewer(details: Details, events: Ints, rows: Ints, most: int) -> Details:
    return replace(
        details,
        live=details.live[rows],
        lines=tuple(details.lines[row] for row in rows.tolist()),
        lives=_longest(details.lives, int(events[-1]), most),
        pool=_pool(details.pool, events, rows),
    )


def _longest(lives: tuple[Lifetime, ...], end: int, most: int) -> tuple[Lifetime, ...]:
    """Return the allocations with the largest area, oldest first.

    The area in the picture is bytes times events.
    """
    area = sorted(lives, key=lambda life: -life.requested * (min(life.freed, end) - life.born))
    return tuple(sorted(area[:most], key=lambda life: life.number))


def _pool(pool: PoolHistory, events: Ints, rows: Ints) -> PoolHistory:
    """Return the pool history at the given rows, without unused tilings."""
    kept: dict[int, int] = {}
    states = []
    for changes in pool.states:
        at = np.array([moment for moment, _ in changes], np.int64)
        now, found = GONE, []
        for row, index in enumerate((np.searchsorted(at, rows, side="right") - 1).tolist()):
            tiling = changes[index][1] if index >= 0 else GONE
            if tiling != now:
                place = GONE if tiling == GONE else kept.setdefault(tiling, len(kept))
                found.append((row, place))
                now = tiling
        states.append(tuple(found))
    return PoolHistory(
        event=events,
        segments=pool.segments,
        tilings=tuple(pool.tilings[tiling] for tiling in kept),
        states=tuple(states),
    )
