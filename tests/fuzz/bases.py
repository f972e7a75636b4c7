"""Valid files that mutations start from: snapshots and sessions."""

from __future__ import annotations

import copy
import functools
import io
import lzma
import pickle
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from nbmem.core.files.session import save_session
from nbmem.core.files.snapshot_session import session_of_snapshot
from nbmem.core.session.categories import Category
from nbmem.core.session.events import Action, Frame
from nbmem.core.session.oom import Refusal
from nbmem.core.session.session import (
    Calls,
    CardSamples,
    CounterSamples,
    Holders,
    Session,
    StorageLabels,
)
from nbmem.core.session.spans import Span

RECORDINGS = Path(__file__).parents[1] / "recordings" / "snapshots"
NAMES = ("cuda_graph", "fragmentation", "reserved_unused", "retry", "streams", "oom")
MAX_EVENTS = 400


@functools.cache
def _snapshot(name: str) -> bytes:
    raw = pickle.loads(lzma.decompress((RECORDINGS / f"{name}.pickle.xz").read_bytes()))
    raw["device_traces"] = [trace[-MAX_EVENTS:] for trace in raw["device_traces"]]
    return pickle.dumps(raw, protocol=4)


def snapshot(name: str) -> dict:
    """A snapshot of its own, to be changed."""
    return pickle.loads(_snapshot(name))


def packed(name: str, protocol: int) -> bytes:
    """A snapshot's bytes."""
    return pickle.dumps(snapshot(name), protocol=protocol)


@functools.cache
def session(name: str) -> Session:
    """A session with every table that a file may have."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.pickle")
        path.write_bytes(_snapshot(name))
        found = session_of_snapshot(path)
    trace = found.devices[0]
    births = np.flatnonzero(trace.events.action == Action.ALLOC)[:40]
    n, times = len(births), trace.events.t_ns
    count = len(trace.events)
    one = np.arange(n, dtype=np.int64)
    places = np.linspace(0, count, 6, dtype=np.int64)
    total = 80 << 30
    reserved = np.full(6, 64 << 20)
    full = replace(
        trace,
        info=replace(trace.info, total_bytes=total, capability=(9, 0)),
        settings={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "expandable_segments": False},
        storage_labels=StorageLabels(
            position=births + 1,
            addr=trace.events.addr[births],
            size=trace.events.size[births],
            category=(one % (Category.UNKNOWN + 1)).astype(np.uint8),
            name=one % 8,
        ),
        counter_samples=CounterSamples(
            t_ns=times[np.minimum(places, count - 1)],
            position=places,
            allocated=reserved // 2,
            active=reserved // 2,
            requested=reserved // 3,
            reserved=reserved,
        ),
        samples=CardSamples(
            t_ns=times[np.minimum(places, count - 1)],
            used=reserved * 20,
            process=reserved * 10,
            reserved=reserved,
            host=reserved,
        ),
        holders=Holders(
            addr=trace.events.addr[births],
            size=trace.events.size[births],
            form=one % 8,
            kind=(one % 13).astype(np.uint8),
            root=one % 8,
            path=one % 8,
        ),
        calls=Calls(first=births - 1, last=births + 1, name=one % 8),
        other_processes={"python": 1 << 30},
    )
    steps = [
        Span(
            kind="phase",
            name=("forward", "backward", "optimizer")[k % 3],
            step=k // 3,
            parent=0,
            t0_ns=int(times[count * k // 6]),
            t1_ns=int(times[min(count - 1, count * (k + 1) // 6)]),
            first=(count * k // 6,),
            last=(count * (k + 1) // 6,),
        )
        for k in range(6)
    ]
    frame = Frame("train.py", 3, "<module>")
    refusal = Refusal(
        t_ns=int(times[-1]),
        device=0,
        wanted=1 << 34,
        free=1 << 30,
        allocated=1 << 29,
        reserved=1 << 30,
        stack=(frame,),
        layer="model.layer (Linear)",
        progress=0.5,
    )
    module = {
        "name": "model",
        "class": "Net",
        "training": True,
        "parameters": 4,
        "bytes": 1 << 20,
        "float32_bytes": 1 << 20,
        "blocks": [{"path": "layers", "class": "Block", "count": 4}],
        "relu_not_inplace": 2,
        "checkpointed": {"count": 4, "training": 0, "evaluating": ""},
        "called": True,
    }
    call = {
        "module": "model",
        "training": True,
        "grad": True,
        "autocast": None,
        "rows": 8,
        "count": 3,
    }
    optimizer = {
        "name": "optimizer",
        "class": "AdamW",
        "torch": True,
        "switches": {"foreach": None, "fused": None},
        "parameters": [1024, 2048],
        "shapes": [[16, 16], [512]],
        "with_gradient": [True, True],
        "float32": True,
        "states": 2,
    }
    return replace(
        found,
        created_ns=int(times[0]),  # not now: file N is the same at all times
        devices=(full, *found.devices[1:]) if len(found.devices) == 1 else (full,),
        spans=(found.spans[0], *steps) if len(found.devices) == 1 else found.spans[:1],
        names=tuple(f"model.{n}.weight (8, 8) float32" for n in range(8)),
        error="OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB.",
        refusals=(refusal,),
        facts={
            "calls": [call],
            "modules": [module],
            "optimizers": [optimizer],
            "batches": [{"name": "batch_size", "value": 8}],
            "pinned": {"held": 1 << 30, "used": 1 << 20},
        },
    )


@functools.cache
def _archive(name: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = save_session(session(name), Path(folder, "x.nbmem"))
        with zipfile.ZipFile(path) as archive:
            return {entry: archive.read(entry) for entry in archive.namelist()}


def entries(name: str) -> dict[str, bytes]:
    """A session's entries, to be changed."""
    return copy.copy(_archive(name))


def zipped(parts: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Entries as an archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", packing) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return target.getvalue()


@functools.cache
def crowded(name: str, entries: int) -> bytes:
    """A session's archive with so many empty entries beside its own."""
    return zipped({**_archive(name), **{f"{n}": b"" for n in range(entries)}}, zipfile.ZIP_STORED)
