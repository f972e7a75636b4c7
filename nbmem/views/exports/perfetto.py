"""Export a recording in Chrome's trace event format, for Perfetto.

Cells, steps, phases and blocks are shown above the bytes by category.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (times are in
microseconds); read by https://ui.perfetto.dev and chrome://tracing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.files.atomic_write import write_text
from nbmem.core.session.categories import RESERVED
from nbmem.core.session.events import Action
from nbmem.report.analysis.moments import times_at
from nbmem.report.analysis.report_builder import recorded_times
from nbmem.report.analysis.timeline import chosen_positions

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.spans import Span
    from nbmem.report.ledger.card_ledger import CardLedger

BINS = 5_000
"""Intervals of the recording, each with its highest and its lowest moment: a few MB at most."""
TRACKS = {"cell": 1, "step": 2, "phase": 3, "block": 4}


def write(card_ledger: CardLedger, path: Path) -> None:
    """Write a recording as a trace for Perfetto."""
    events = [
        *_names(card_ledger),
        *_spans(card_ledger),
        *_steps(card_ledger),
        *_failures(card_ledger),
        *_bytes(card_ledger),
    ]
    trace = {"displayTimeUnit": "ms", "traceEvents": events}
    write_text(path, json.dumps(trace, separators=(",", ":")) + "\n")


def _names(card_ledger: CardLedger) -> Iterator[dict[str, Any]]:
    card = card_ledger.trace.info
    process = {"ph": "M", "pid": card.index}
    where = "host memory" if card.is_host else f"{card.kind}:{card.index} {card.name}"
    title = f"{card_ledger.session.name}: {where}"
    yield process | {"name": "process_name", "args": {"name": title}}
    for kind, track in TRACKS.items():
        yield process | {"tid": track, "name": "thread_name", "args": {"name": f"{kind}s"}}
        yield process | {"tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _spans(card_ledger: CardLedger) -> Iterator[dict[str, Any]]:
    for span in card_ledger.session.spans:
        yield _slice(card_ledger, span.kind, span.name, [span])


def _steps(card_ledger: CardLedger) -> Iterator[dict[str, Any]]:
    steps: dict[int, list[Span]] = {}
    for _, span in card_ledger.phases.spans:
        if span.step is not None:
            steps.setdefault(span.step, []).append(span)
    for step, spans in steps.items():
        yield _slice(card_ledger, "step", f"step {step}", spans)


def _slice(card_ledger: CardLedger, kind: str, name: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Return a slice from the first span's start to the last span's end.

    The slice's arguments are the bytes before it, at its peak and after it.
    """
    t0_ns, _ = recorded_times(card_ledger)
    begin, end = min(span.t0_ns for span in spans), max(span.t1_ns for span in spans)
    firsts, lasts = zip(*map(card_ledger.bounds, spans), strict=True)
    first, last = min(firsts), max(lasts)
    allocated = card_ledger.allocated
    figures = {
        "peak_allocated": int(allocated[card_ledger.peak(first, last)]),
        "allocated_before": int(allocated[first]),
        "allocated_after": int(allocated[last]),
    }
    step = {} if spans[0].step is None else {"step": spans[0].step}
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": card_ledger.trace.info.index,
        "tid": TRACKS[kind],
        "ts": (begin - t0_ns) / 1000,
        "dur": (end - begin) / 1000,
        "args": step | figures,
    }


def _failures(card_ledger: CardLedger) -> Iterator[dict[str, Any]]:
    """Yield the allocation requests that failed."""
    t0_ns, _ = recorded_times(card_ledger)
    events = card_ledger.trace.events
    for at in np.flatnonzero(events.action == Action.OOM).tolist():
        yield {
            "ph": "i",
            "s": "p",
            "name": "out of memory",
            "pid": card_ledger.trace.info.index,
            "tid": TRACKS["phase"],
            "ts": (int(events.t_ns[at]) - t0_ns) / 1000,
            "args": {"wanted": int(events.size[at])},
        }


def _bytes(card_ledger: CardLedger) -> Iterator[dict[str, Any]]:
    """Yield counters of the reserved bytes by category, and the totals.

    The totals are the allocator's own allocated and reserved bytes.
    """
    t0_ns, _ = recorded_times(card_ledger)
    positions = chosen_positions(card_ledger, BINS)
    held = card_ledger.held(positions)
    shown = [category for category in RESERVED if held[:, category].any()]
    times = times_at(card_ledger, positions, t0_ns)
    counter = {"ph": "C", "pid": card_ledger.trace.info.index}
    for at, position in enumerate(positions.tolist()):
        moment = counter | {"ts": int(times[at]) / 1000}
        sums = {
            "allocated": int(card_ledger.allocated[position]),
            "reserved": int(card_ledger.reserved[position]),
        }
        yield moment | {"name": "bytes", "args": sums}
        parts = {category.label: int(held[at, category]) for category in shown}
        yield moment | {"name": "bytes by category", "args": parts}
