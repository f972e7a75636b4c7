"""The phases of a report and its steps, as columns that stay small for a long loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.categories import ACTIVE
from nbmem.views.rows import Gap, shorten

if TYPE_CHECKING:
    from nbmem.report import PhaseRow, Report
    from nbmem.views.explorer.texts import Texts

MOST_STEPS = 600
"""Steps whose growth is drawn; of a longer loop every n-th."""
SIDE_BY_SIDE = 4
"""Steps that stand side by side."""


def phase_table(report: Report, texts: Texts) -> list[dict[str, Any]]:
    """One entry for each phase that is shown; `left_out` says how many steps lie before it."""
    rows: list[dict[str, Any]] = []
    where = {id(row): index for index, row in enumerate(report.phases)}
    compared = set(steps_side_by_side(report))
    left_out = 0
    for row in shorten(report):
        if isinstance(row, Gap):
            left_out = row.groups
            continue
        rows.append(_phase(report, row, where[id(row)], texts))
        rows[-1]["left_out"], left_out = left_out, 0
        if row.step in compared and row.depth == 0:
            held = row.ledger_at_peak.held
            rows[-1]["held"] = [[int(c), held[c]] for c in ACTIVE if held[c]]
    return rows


def _phase(report: Report, row: PhaseRow, index: int, texts: Texts) -> dict[str, Any]:
    events = report.details.phases[index] if report.details else (-1, -1)
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
    """The first steps and the last: what the first one builds up shows beside the second."""
    steps = list(dict.fromkeys(row.step for row in report.phases if row.step is not None))
    if len(steps) <= SIDE_BY_SIDE:
        return steps
    return [*steps[: SIDE_BY_SIDE - 1], steps[-1]]


def step_table(report: Report) -> list[list[int]]:
    """[step, start in ns, highest allocated, allocated at its end] of each step."""
    steps: dict[int, list[int]] = {}
    for row in report.phases:
        if row.step is None:
            continue
        known = steps.setdefault(row.step, [row.step, row.t0_ns, 0, 0])
        known[2] = max(known[2], row.peak_allocated)
        if row.depth == 0:
            known[3] = row.allocated
    found = list(steps.values())
    stride = -(-len(found) // MOST_STEPS)
    return found[:: max(stride, 1)]
