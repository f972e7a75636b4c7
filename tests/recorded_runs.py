"""Recorded H100 runs, read as sessions."""

import csv
import json
import lzma
from operator import itemgetter
from pathlib import Path

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import Action, Blocks, BlockState, Events, Layout, Segments
from nbmem.core.session.session import (
    CardSamples,
    CounterSamples,
    DeviceInfo,
    DeviceTrace,
    Session,
    StorageLabels,
)
from nbmem.core.session.spans import Span

TRACES = Path(__file__).parent / "recordings" / "traces"
SNAPSHOTS = Path(__file__).parent / "recordings" / "snapshots"
NAMES = sorted(path.name.removesuffix(".json.xz") for path in TRACES.glob("*.json.xz"))
CATEGORIES = {
    "weights": Category.WEIGHTS,
    "buffers": Category.BUFFERS,
    "gradients": Category.GRADIENTS,
    "optimizer": Category.OPTIMIZER_STATE,
    "inputs": Category.INPUTS,
}


def load(name):
    """Read a recording as it was written."""
    return json.loads(lzma.open(TRACES / f"{name}.json.xz").read())


def snapshot_counters(name):
    """Return torch's counters at the labelled moments of a snapshot's run.

    All ran with torch 2.11.0+cu130 on an H100 of 85,017,493,504 bytes. A failed request has a
    message and no counters.
    """
    with (SNAPSHOTS / "counters.csv").open() as file:
        return [
            {key: int(value) if value.isdigit() else value for key, value in row.items() if value}
            for row in csv.DictReader(file)
            if row["snapshot"] == name
        ]


def session_of(raw):
    """Convert a recording into the session that nbmem would make."""
    events = _events(raw)
    positions = [int(np.searchsorted(events.t_ns, b["t"] * 1000, "right")) for b in raw["bounds"]]
    counters = itemgetter("allocated", "active", "requested", "reserved")
    counter_samples = CounterSamples.from_rows(
        (b["t"] * 1000, p, *counters(b)) for b, p in zip(raw["bounds"], positions, strict=True)
    )
    at = {(b["end_of"], b["it"]): p for b, p in zip(raw["bounds"], positions, strict=True)}
    rows = [
        (at[c["at"], c["it"]], addr, size, category, 0)
        for c in raw["categories"]
        for key, category in CATEGORIES.items()
        for addr, size in c[key]
    ]
    trace = DeviceTrace(
        info=DeviceInfo(
            index=0,
            name=raw["device"],
            total_bytes=raw["total_memory"],
            virtual=False,
            torch=raw["torch"],
            capability=(9, 0),
        ),
        release=raw["torch"].split("+")[0],
        settings=raw["settings"],
        start=Layout.empty(),
        events=events,
        end=layout_of(raw["segments"]),
        dropped=0,
        counter_samples=counter_samples,
        samples=_samples(raw),
        storage_labels=StorageLabels.from_rows(rows),
    )
    return Session(
        name=raw["name"],
        created_ns=int(counter_samples.t_ns[-1]),
        devices=(trace,),
        spans=_spans(raw, positions),
        names=("seen",),
    )


def _events(raw):
    actions = [Action[a.upper()] for a in raw["actions"]]
    return Events.from_rows(
        (actions[action], addr, size, stream, t_us * 1000, -1)
        for action, addr, size, stream, t_us, *_ in raw["events"]
    )


def _samples(raw):
    # the card was shared: this process stands for all that was in use
    return CardSamples.from_rows(
        (b["t"] * 1000, b["process"], b["process"], b["reserved"], -1) for b in raw["bounds"]
    )


def _spans(raw, positions):
    bounds = raw["bounds"]
    spans = [
        Span(kind="cell", name=raw["name"], t0_ns=bounds[0]["t"] * 1000,
             t1_ns=bounds[-1]["t"] * 1000, first=(0,), last=(len(raw["events"]),))
    ]  # fmt: skip
    begin, t0 = 0, bounds[0]["t"] * 1000
    for bound, end in zip(bounds, positions, strict=True):
        spans.append(
            Span(
                kind="phase",
                name=bound["end_of"],
                step=None if bound["it"] < 0 else bound["it"],
                parent=0,
                t0_ns=t0,
                t1_ns=bound["t"] * 1000,
                first=(begin,),
                last=(end,),
            )
        )
        begin, t0 = end, bound["t"] * 1000
    return tuple(spans)


def layout_of(segments):
    """Return the recording's segments as columns."""
    states = {
        "inactive": BlockState.INACTIVE,
        "active_allocated": BlockState.ALLOCATED,
        "active_pending_free": BlockState.PENDING,
    }
    segments = sorted(segments, key=itemgetter("address"))
    return Layout(
        segments=Segments.from_rows(
            (
                s["address"], s["total_size"], s["stream"], s["segment_type"] == "small",
                s["is_expandable"], s["segment_pool_id"][1],
            )
            for s in segments
        ),
        blocks=Blocks.from_rows(
            (b["address"], b["size"], b["requested_size"], states[b["state"]], -1)
            for s in segments
            for b in s["blocks"]
        ),
    )  # fmt: skip
