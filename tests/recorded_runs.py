"""Recorded H100 runs, read as sessions."""

import json
import lzma
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


def session_of(raw):
    """Convert a recording into the session that nbmem would make."""
    events = _events(raw)
    positions = [int(np.searchsorted(events.t_ns, b["t"] * 1000, "right")) for b in raw["bounds"]]
    counter_samples = CounterSamples(
        t_ns=_column(b["t"] * 1000 for b in raw["bounds"]),
        position=_column(positions),
        **{
            key: _column(b[key] for b in raw["bounds"])
            for key in ("allocated", "active", "requested", "reserved")
        },
    )
    at = {(b["end_of"], b["it"]): p for b, p in zip(raw["bounds"], positions, strict=True)}
    rows = [
        (at[c["at"], c["it"]], addr, size, category)
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
        storage_labels=StorageLabels(
            position=_column(r[0] for r in rows),
            addr=_column(r[1] for r in rows),
            size=_column(r[2] for r in rows),
            category=np.array([r[3] for r in rows], np.uint8),
            name=np.zeros(len(rows), np.int64),
        ),
    )
    return Session(
        name=raw["name"],
        created_ns=int(counter_samples.t_ns[-1]),
        devices=(trace,),
        spans=_spans(raw, positions),
        names=("seen",),
    )


def _column(values):
    return np.array(list(values), np.int64)


def _events(raw):
    actions = np.array([Action[a.upper()] for a in raw["actions"]], np.uint8)
    table = np.array([row[:5] for row in raw["events"]], np.int64).reshape(-1, 5)
    return Events(
        action=actions[table[:, 0]],
        addr=table[:, 1].copy(),
        size=table[:, 2].copy(),
        stream=table[:, 3].copy(),
        t_ns=table[:, 4] * 1000,
        stack=np.full(len(table), -1, np.int64),
    )


def _samples(raw):
    bounds = raw["bounds"]
    process = _column(b["process"] for b in bounds)
    return CardSamples(  # the card was shared: this process stands for all that was in use
        t_ns=_column(b["t"] * 1000 for b in bounds),
        used=process,
        process=process,
        reserved=_column(b["reserved"] for b in bounds),
        host=np.full(len(bounds), -1, np.int64),
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
    segments = sorted(segments, key=lambda s: s["address"])
    blocks = [b for s in segments for b in s["blocks"]]
    return Layout(
        segments=Segments(
            addr=_column(s["address"] for s in segments),
            size=_column(s["total_size"] for s in segments),
            stream=_column(s["stream"] for s in segments),
            small=np.array([s["segment_type"] == "small" for s in segments], np.uint8),
            expandable=np.array([s["is_expandable"] for s in segments], np.uint8),
            pool=_column(s["segment_pool_id"][1] for s in segments),
        ),
        blocks=Blocks(
            addr=_column(b["address"] for b in blocks),
            size=_column(b["size"] for b in blocks),
            requested=_column(b["requested_size"] for b in blocks),
            state=np.array([states[b["state"]] for b in blocks], np.uint8),
            stack=np.full(len(blocks), -1, np.int64),
        ),
    )
