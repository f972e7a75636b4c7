"""Export a report as JSON: a documented, stable form for scripts and CI.

`verdict`, the report's first sentence; `device` {name, kind, allocator, total_bytes, virtual,
engine, torch, shared, spilled_bytes}; `peak` {allocated, reserved, active, requested, process};
`ledger_at_peak` and `ledger_at_end` {category: bytes}; `parts_at_peak` and `parts_at_end`
{category: {part: bytes}}, where a category's parts add up to it; `phases`, a list in order of
{name, step, allocated, reserved, peak_allocated, peak_reserved, ledger_at_peak, ledger_at_end};
`unknown`; `dropped_events`; `notes`; `findings`, a list of {rule, title, evidence, low, high,
ground, code, command}; `out_of_memory`, a list of {caught, line, layer, operator, phase, step,
asked, wanted, free, limit, allocated, reserved, given_back, largest_free, free_in_private_pools,
reason, ledger, holders, remedies}; the one that ended the recording (or the last) comes first, and
only it has all fields;
`lines`, null without Python stacks, {file, rows, elsewhere}, both lists of {line, text, peak, kept,
taken}; `growth`, null if no tip is about it, {steps, events, allocated, steps_left, holders}: step
numbers, the event at which each ends and the bytes allocated there, the steps after which the card
is full at this rate (null if not known), and a list of {name, category, bytes_a_step, held, line,
code}, where `held` has the bytes at each step's end; `would_run_on`, a list by size of {card,
total, fits, margin, spare, short, releases, exact, how}, and `would_run_on_limits`, what that list
cannot know, one sentence each.

All figures are bytes. `fits` is null if it was not decided; `margin` is whether 2% of the card stay
free as well. `process` is null if the driver does not report this process's memory. Steps
count from 0; `step` is null outside of a training step. Every ledger has all categories, and they
add up to `total_bytes`. `unknown` is that category's bytes at the peak. Keys are added in later
versions, never renamed or removed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nbmem.core.files.atomic_write import write_json
from nbmem.core.session.categories import Category
from nbmem.views.verdict import verdict
from nbmem.views.would_run_on import limits_of

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.report.exploration import LineRow, Lines, StepGrowth
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.model import Finding, OomReport, PhaseRow, Report


def _machine(ledger: Ledger) -> dict[str, int | None] | None:
    return None if ledger.machine is None else ledger.machine.to_json()


def write(report: Report, path: Path) -> None:
    """Write a report in its stable form."""
    write_json(path, report_json(report))


def report_json(report: Report) -> dict[str, Any]:
    """Return the report in the JSON form that this module documents."""
    device, peak = report.device, report.peak
    managed = report.ledger_at_end.managed
    return {
        "verdict": verdict(report),
        "device": {
            "name": device.name,
            "kind": device.kind,
            "allocator": device.allocator,
            "total_bytes": report.ledger_at_peak.total_bytes,
            "virtual": device.virtual,
            "engine": device.engine or None,
            "torch": device.torch,
            "shared": device.shared,
            "spilled_bytes": device.spilled_bytes,
        },
        "peak": {
            "allocated": peak.allocated,
            "reserved": peak.reserved,
            "active": peak.active,
            "requested": peak.requested,
            "process": peak.process,
        },
        "ledger_at_peak": report.ledger_at_peak.to_json(),
        "ledger_at_end": report.ledger_at_end.to_json(),
        "parts_at_peak": report.ledger_at_peak.parts_json(),
        "parts_at_end": report.ledger_at_end.parts_json(),
        "frameworks_at_peak": report.ledger_at_peak.frameworks_json(),
        "frameworks_at_end": report.ledger_at_end.frameworks_json(),
        "machine_at_peak": _machine(report.ledger_at_peak),
        "machine_at_end": _machine(report.ledger_at_end),
        "managed_at_end": None if managed is None else managed.to_json(),
        "phases": [_phase(row) for row in report.phases],
        "unknown": report.ledger_at_peak[Category.UNKNOWN],
        "dropped_events": report.dropped_events,
        "notes": list(report.notes),
        "findings": [finding_json(finding) for finding in report.findings],
        "out_of_memory": [_oom(oom) for oom in report.ooms],
        "lines": None if report.lines is None else _lines(report.lines),
        "growth": None if report.growth is None else _growth(report.growth),
        **_would_run_on(report),
    }


def _would_run_on(report: Report) -> dict[str, Any]:
    """Return the common cards' answers; `fits` is null if not decided."""
    found = report.would_run_on
    if found is None:
        return {"would_run_on": [], "would_run_on_limits": []}
    return {
        "would_run_on": [asdict(one) for one in found.cards],
        "would_run_on_limits": limits_of(found),
    }


def _lines(lines: Lines) -> dict[str, Any]:
    """Return the memory of the code's lines, and of no line, as JSON.

    Each column adds up.
    """
    return {
        "file": lines.file,
        "rows": [_line(row) for row in lines.rows],
        "elsewhere": [_line(row) for row in lines.elsewhere],
    }


def _growth(growth: StepGrowth) -> dict[str, Any]:
    """Return what grows from step to step as JSON."""
    return {
        "steps": list(growth.steps),
        "events": list(growth.events),
        "allocated": list(growth.allocated),
        "steps_left": growth.left,
        "holders": [
            {
                "name": holder.name,
                "category": holder.category.key,
                "bytes_a_step": holder.slope,
                "held": list(holder.held),
                "line": holder.line,
                "code": holder.code or None,
            }
            for holder in growth.holders
        ],
    }


def _line(row: LineRow) -> dict[str, Any]:
    return {
        "line": row.number,
        "text": row.text,
        "peak": row.peak,
        "kept": row.kept,
        "taken": row.taken,
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return one tip as JSON; absent `code` and `command` are null."""
    command = finding.command
    return {
        "rule": finding.rule,
        "title": finding.title,
        "evidence": finding.evidence,
        "low": finding.low,
        "high": finding.high,
        "ground": finding.ground,
        "code": finding.code,
        "command": None if command is None else [command.name, *command.arguments],
    }


def _oom(oom: OomReport) -> dict[str, Any]:
    """Return one out-of-memory error as JSON; unknown values are null."""
    return {
        "caught": oom.caught,
        "line": oom.at.line,
        "layer": oom.layer,
        "operator": oom.operator,
        "phase": oom.at.phase,
        "step": oom.at.step,
        "asked": oom.asked,
        "wanted": oom.wanted,
        "free": oom.free,
        "limit": oom.limit,
        "allocated": oom.allocated,
        "reserved": oom.reserved,
        "given_back": oom.given_back,
        "largest_free": oom.largest,
        "free_in_private_pools": oom.pooled,
        "reason": oom.reason,
        "ledger": None if oom.ledger is None else oom.ledger.to_json(),
        "holders": [
            {
                "name": held.name or held.line,
                "category": None if held.category is None else held.category.key,
                "bytes": held.requested,
                "tensors": held.count,
            }
            for held in oom.holders
        ],
        "remedies": [finding_json(remedy) for remedy in oom.remedies],
    }


def _phase(row: PhaseRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "step": row.step,
        "allocated": row.allocated,
        "reserved": row.reserved,
        "peak_allocated": row.peak_allocated,
        "peak_reserved": row.peak_reserved,
        "ledger_at_peak": row.ledger_at_peak.to_json(),
        "ledger_at_end": row.ledger_at_end.to_json(),
    }
