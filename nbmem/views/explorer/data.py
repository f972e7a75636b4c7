"""Gather everything that the explorer draws in one JSON object.

Slowly rising whole numbers are written as differences, texts once in a separate list. This
compresses to tens of kB. Nothing relies on the order of an object's keys, which nbformat sorts.
The allocator's segments at every moment are few integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import LIVE, Category
from nbmem.core.session.host_memory import PARTS
from nbmem.core.units import format_bytes, format_range
from nbmem.report.exploration import GONE, MIXED
from nbmem.report.tips.applicable import can_be_tried
from nbmem.views import report_sentences
from nbmem.views.charts.phase_strips import time_hides_steps
from nbmem.views.explorer.holding_names import parts_of
from nbmem.views.explorer.phases import band_columns, phase_table, step_table
from nbmem.views.explorer.text_table import Texts
from nbmem.views.growth import name_of, outlook, sentence
from nbmem.views.markup import one_line
from nbmem.views.rows import HOST_PARTS, PARTS_OF
from nbmem.views.verdict import peak_figures, verdict
from nbmem.views.would_run_on import would_run_line

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.report.exploration import (
        Details,
        Lifetime,
        Lines,
        MomentDetails,
        PoolHistory,
        StepGrowth,
    )
    from nbmem.report.model import Finding, Report, Timeline

MAX_SEGMENTS = 400
"""Segments that are drawn, the largest; the others are summed up in text."""


def pool_columns(history: PoolHistory) -> dict[str, Any]:
    """Return the allocator's segments and blocks at some moments.

    Bytes are in units of their greatest common divisor. A piece has its bytes and its kind; a used
    one also the number of its blocks; a mixed one also its free bytes. A segment's states are a
    flat list: moments since the previous state, and the tiling.
    """
    sizes = np.array([segment.size for segment in history.segments], np.int64)
    drawn = np.sort(np.argsort(-sizes, kind="stable")[:MAX_SEGMENTS]).tolist()
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


def _unit(history: PoolHistory, sizes: Ints) -> int:
    columns = [sizes, *(tiling[:, (0, 3)].ravel() for tiling in history.tilings)]
    return max(int(np.gcd.reduce(np.concatenate(columns))), 1)


def _flat(tiling: Ints, unit: int) -> Iterator[int]:
    for size, kind, count, free in tiling.tolist():
        yield size // unit
        yield kind
        if kind >= 0:
            yield count
            if kind & MIXED:
                yield free // unit


VERSION = 3
"""Raised when an older front end cannot draw it."""
MAX_CELLS = 200
"""Lines of the history included in a report: the latest."""


def explorer_data(report: Report, cells: Sequence[CellDelta] = ()) -> dict[str, Any]:
    """Gather what the explorer draws of a report.

    Args:
        report: The report.
        cells: The notebook's history, oldest first.
    """
    texts = Texts()
    moments, details = report.timeline, report.details
    both = report.ledger_at_peak, report.ledger_at_end
    kind = report.device.kind
    data: dict[str, Any] = {
        "version": VERSION,
        "verdict": verdict(report),
        "peak_figures": peak_figures(report),
        "would_run_on": would_run_line(report),
        "source": report_sentences.source(report.peak.at),
        "about": report_sentences.recording(report),
        "error": one_line(report.error) if report.error else None,
        "notes": report_sentences.notes(report),
        "total": report.device.total_bytes,
        "process_known": report.ledger_at_peak.process_known,
        "duration": report.duration_ns,
        "events": report.events,
        "peak": {
            "event": report.peak.at.event,
            "allocated": report.peak.allocated,
            "reserved": report.peak.reserved,
            "process": report.peak.process,
        },
        "categories": [
            {
                "key": category.key,
                "label": report_sentences.label(category, *both, kind=kind),
                "meaning": report_sentences.meaning(category, *both, kind=kind),
            }
            for category in Category
        ],
        "moments": _curves(moments),
        "by_event": time_hides_steps(moments),
        "bands": band_columns(report, texts),
        "phases": phase_table(report, texts),
        "steps": step_table(report),
        "tips": tips_data(report.findings),
        "history": [_cell(row) for row in cells[-MAX_CELLS:]],
    }
    if report.device.is_host:
        data["host"] = True
    if moments.parts is not None:
        data["parts"] = _parts()
    if details is not None:
        _add_details(data, details, texts)
    if report.lines is not None:
        data["lines"] = _lines(report.lines)
    if report.growth is not None:
        data["growth"] = _growth(report.growth)
    data["texts"] = texts.all
    return data


def differences(column: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
    """Return the first value, then the difference to each next one."""
    steps: list[int] = np.diff(column, prepend=0).tolist()
    return steps


def _add_details(data: dict[str, Any], details: Details, texts: Texts) -> None:
    data["moments"] |= _details_columns(details, texts)
    data["cells"] = [
        [texts.index(cell.name), cell.t0_ns, cell.t1_ns, cell.first, cell.last]
        for cell in details.cells
    ]
    data["lives"] = _lives(details.lives, texts)
    data["pool"] = pool_columns(details.pool)


def closeup_data(closeup: MomentDetails) -> dict[str, Any]:
    """Return the extra explorer data for single moments."""
    texts = Texts()
    return {
        "moments": _curves(closeup) | _details_columns(closeup, texts),
        "lives": _lives(closeup.lives, texts),
        "pool": pool_columns(closeup.pool),
        "pool_event": int(closeup.pool.event[0]),
        "texts": texts.all,
    }


def _parts() -> list[dict[str, str]]:
    """Describe the columns of the moments' parts, and each one's category.

    `of` is the key of the line below which a part stands.
    """
    place = {key: whole for whole, keys in PARTS_OF.items() for key in keys}
    return [
        {"key": key, "of": place[key], "label": HOST_PARTS[key][0], "meaning": HOST_PARTS[key][1]}
        for key in PARTS
    ]


def _curves(moments: Timeline | MomentDetails) -> dict[str, Any]:
    parts = {} if moments.parts is None else {"parts": list(map(differences, moments.parts.T))}
    return parts | {
        "event": differences(moments.event),
        "t": differences(moments.t_ns),
        "held": [
            [int(category), differences(moments.held[:, category])]
            for category in Category
            if category is not Category.FREE and moments.held[:, category].any()
        ],
    }


def _details_columns(moments: Details | MomentDetails, texts: Texts) -> dict[str, Any]:
    return {
        "live": [
            [int(category), differences(moments.live[:, category])]
            for category in LIVE
            if moments.live[:, category].any()
        ],
        "line": [texts.index(line) for line in moments.lines],
    }


def _lives(lives: Sequence[Lifetime], texts: Texts) -> dict[str, Any]:
    parts = [parts_of(life) for life in lives]
    return {
        "number": differences(np.array([life.number for life in lives], np.int64)),
        "born": differences(np.array([life.born for life in lives], np.int64)),
        "freed": [life.freed for life in lives],
        "category": [int(life.category) for life in lives],
        "requested": [life.requested for life in lives],
        "block": [life.block for life in lives],
        "name": [texts.index(part.name) for part in parts],
        "group": [texts.index(part.group) for part in parts],
        "shape": [texts.index(part.shape) for part in parts],
        "dtype": [texts.index(part.dtype) for part in parts],
        "born_in": [texts.index(life.born_in) for life in lives],
        "line": [texts.index(life.line) for life in lives],
        "stack": [[texts.index(line) for line in life.stack] for life in lives],
        "holders": [[texts.index(path) for path in life.holders] for life in lives],
    }


def _lines(lines: Lines) -> dict[str, Any]:
    """Return the recorded code and its rows of memory.

    Rows are [line, peak, kept, taken]. Those of `elsewhere` have a reason in place of the line.
    """
    return {
        "file": one_line(lines.file),
        "code": [[number, one_line(text)] for number, text in lines.code],
        "rows": [[row.number, row.peak, row.kept, row.taken] for row in lines.rows],
        "elsewhere": [[row.text, row.peak, row.kept, row.taken] for row in lines.elsewhere],
    }


def _growth(growth: StepGrowth) -> dict[str, Any]:
    """Return what grows from step to step; `held` has the bytes by step."""
    return {
        "steps": list(growth.steps),
        "events": list(growth.events),
        "allocated": list(growth.allocated),
        "words": outlook(growth),
        "holders": [
            {
                "name": name_of(holder),
                "category": int(holder.category),
                "slope": holder.slope,
                "held": list(holder.held),
                "line": one_line(holder.line or ""),
                "number": holder.number,
                "code": one_line(holder.code),
                "words": sentence(holder),
            }
            for holder in growth.holders
        ],
    }


def tips_data(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return tips as the front end draws them, with their texts ready.

    `try` is the rule by which `%nbmem try` finds the tip: the first of each that can be tried.
    """
    entries: list[dict[str, Any]] = []
    for finding in findings:
        first = all(finding.rule != one["rule"] for one in entries)
        entries.append(
            _tip(finding) | {"try": finding.rule if first and can_be_tried(finding) else None}
        )
    return entries


def _tip(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "title": one_line(finding.title),
        "evidence": one_line(finding.evidence),
        "saves": format_range(finding.low, finding.high) if finding.high else "",
        "ground": finding.ground,
        "code": finding.code,
        "command": finding.command and [finding.command.name, *finding.command.arguments],
        "measured": None if finding.measured is None else format_bytes(finding.measured),
    }


def _cell(row: CellDelta) -> dict[str, Any]:
    return {
        "number": row.execution_count,
        "label": one_line(row.label),
        "delta": row.allocated_delta,
        "kept": row.allocated_after,
        "reserved": row.reserved_after,
        "peak": None if row.peak is None else row.peak.allocated,
        "peak_exact": row.peak is not None and row.peak.exact,
        "duration": row.duration_ns,
        "error": one_line(row.error) if row.error else None,
    }
