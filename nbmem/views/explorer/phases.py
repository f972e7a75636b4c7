"""Tabulate a report's phases and steps as columns that stay small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import ACTIVE
from nbmem.views.steps import Gap, shorten

if TYPE_CHECKING:
    from nbmem.report.model import PhaseRow, Report
    from nbmem.views.explorer.text_table import Texts

MAX_STEPS = 600
"""Steps whose growth is drawn; for a longer loop every n-th."""
MAX_BANDS = 1500
"""Phases whose intervals are drawn above the timeline."""
SIDE_BY_SIDE = 4
"""Steps that are drawn side by side."""


def phase_table(report: Report, texts: Texts) -> list[dict[str, Any]]:
    """Return one entry for each phase that is shown.

    `left_out` says how many rows before it were left out.
    """
    rows: list[dict[str, Any]] = []
    events = _events(report)
    where = {id(row): span for row, span in zip(report.phases, events, strict=True)}
    compared = set(steps_side_by_side(report))
    left_out = ""
    for row in shorten(report):
        if isinstance(row, Gap):
            left_out = row.text
            continue
        rows.append(_phase(row, where[id(row)], texts))
        rows[-1]["left_out"], left_out = left_out, ""
        if row.step in compared and row.depth == 0:
            held = row.ledger_at_peak.held
            rows[-1]["held"] = [[int(c), held[c]] for c in ACTIVE if held[c]]
    return rows


def band_columns(report: Report, texts: Texts) -> list[list[int]]:
    """Return the columns of each phase on the timeline; -1 for none.

    A row is [start, duration, first event, events, name, step]; times are in ns. Too many phases
    are drawn as their steps, too many steps not at all.
    """
    rows = [
        [row.t0_ns, row.t1_ns - row.t0_ns, first, last - first, texts.index(row.name), _step(row)]
        for row, (first, last) in zip(report.phases, _events(report), strict=True)
        if row.depth == 0
    ]
    if len(rows) <= MAX_BANDS:
        return rows
    merged: dict[int, list[int]] = {}
    for t0, took, first, count, _, step in rows:
        whole = merged.setdefault(step, [t0, 0, first, 0, -1, step])
        whole[1], whole[3] = t0 + took - whole[0], first + count - whole[2]
    found = list(merged.values())
    return found if len(found) <= MAX_BANDS else []


def _step(row: PhaseRow) -> int:
    return -1 if row.step is None else row.step


def _events(report: Report) -> tuple[tuple[int, int], ...]:
    if report.details is not None:
        return report.details.phases
    moments = report.timeline
    at = np.searchsorted(moments.t_ns, [(row.t0_ns, row.t1_ns) for row in report.phases])
    last = len(moments.event) - 1
    return tuple((int(a), int(b)) for a, b in moments.event[np.minimum(at, last)].reshape(-1, 2))


def _phase(row: PhaseRow, events: tuple[int, int], texts: Texts) -> dict[str, Any]:
    return {
        "name": texts.index(row.name),
        "step": row.step,
        "depth": row.depth,
        "t0": row.t0_ns,
        "t1": row.t1_ns,
        "first": events[0],
        "last": events[1],
        "before": row.allocated_before,
        "after": row.allocated,
        "peak": row.peak_allocated,
        "reserved": row.reserved,
    }


def steps_side_by_side(report: Report) -> list[int]:
    """Return the first steps and the last, to be compared.

    What the first one builds up is visible beside the second.
    """
    steps = list(dict.fromkeys(row.step for row in report.phases if row.step is not None))
    if len(steps) <= SIDE_BY_SIDE:
        return steps
    return [*steps[: SIDE_BY_SIDE - 1], steps[-1]]


def step_table(report: Report) -> list[list[int]]:
    """Return the growth of the steps.

    A row is [step, start in ns, highest allocated, allocated at its end].
    """
    steps: dict[int, list[int]] = {}
    for row in report.phases:
        if row.step is None:
            continue
        known = steps.setdefault(row.step, [row.step, row.t0_ns, 0, 0])
        known[2] = max(known[2], row.peak_allocated)
        if row.depth == 0:
            known[3] = row.allocated
    found = list(steps.values())
    stride = -(-len(found) // MAX_STEPS)
    return found[:: max(stride, 1)]
