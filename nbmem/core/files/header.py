"""Encode and decode a session's JSON: stacks, spans, refusals and cards.

The keys are the format's, independent of the attributes' names.

Every message is the middle of a sentence: the reader adds the file's name as a prefix.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.errors import FileFormatError
from nbmem.core.files.json_fields import Fields
from nbmem.core.files.size_limits import MAX_FRAMES
from nbmem.core.session.events import Frame, Stack
from nbmem.core.session.oom import ImageDecoding, Refusal, RunningCall
from nbmem.core.session.session import MAX_LINES, DeviceInfo, Source
from nbmem.core.session.spans import Span, SpanKind
from nbmem.core.session.tensor_names import printable_text

if TYPE_CHECKING:
    from nbmem.core.files.archive import Archive

_KINDS: tuple[SpanKind, ...] = ("cell", "phase", "block")
_MAX_ORDINAL = 1023


def stacks_of(head: Fields, archive: Archive) -> tuple[Stack, ...]:
    """Decode the stacks; equal frames are one object."""
    if head.number("format") == 1:
        known: dict[tuple[str, int, str], Frame] = {}
        return tuple(
            tuple(
                known.setdefault((frame.file, frame.line, frame.function), frame)
                for frame in map(frame_of, stack)
            )
            for stack in head.items("stacks")
        )
    frames = [frame_of(raw) for raw in head.items("frames")]
    index, length = archive.column("stacks/frame"), archive.column("stacks/length")
    whole = int(length.sum(dtype=np.float64)) if len(length) else 0
    if (
        whole != len(index)
        or (length < 0).any()
        or (len(index) and not 0 <= index.min() <= index.max() < len(frames))
    ):
        raise FileFormatError("its stacks are made of other frames than it has")
    flat = list(map(frames.__getitem__, index.tolist()))
    ends = np.cumsum(length).tolist()
    return tuple([tuple(flat[a:b]) for a, b in pairwise([0, *ends])])


def frame_of(raw: Any) -> Frame:
    """Decode a frame from `[file, line, function]` or from an object.

    Objects are used in refusals.
    """
    if type(raw) is dict:
        raw = [raw.get("file"), raw.get("line"), raw.get("function")]
    if type(raw) is not list or [type(one) for one in raw] != [str, int, str]:
        raise FileFormatError("a frame of a stack has no file, line and function")
    file, line, function = raw
    if not 0 <= line < 1 << 31:
        raise FileFormatError("a frame of a stack is at no line")
    return Frame(file=printable_text(file), line=line, function=printable_text(function))


def span_of(raw: Any, at: int) -> Span:
    """Decode a span by its index; its parent must precede it."""
    span = Fields(raw, f"span {at}")
    kind = next((kind for kind in _KINDS if kind == raw.get("kind")), None)
    if kind is None:
        raise FileFormatError(f"span {at} is neither a cell nor a phase nor a block")
    return Span(
        kind=kind,
        name=span.text("name"),
        step=span.maybe(lambda name: span.number(name, 1 << 31), "step"),
        parent=span.maybe(lambda name: span.number(name, at - 1), "parent"),
        t0_ns=span.time("t0_ns"),
        t1_ns=span.time("t1_ns"),
        first=span.numbers("first"),
        last=span.numbers("last"),
    )


def span_json(span: Span) -> dict[str, Any]:
    """Encode a span for `span_of`."""
    return {
        "kind": span.kind,
        "name": span.name,
        "step": span.step,
        "parent": span.parent,
        "t0_ns": span.t0_ns,
        "t1_ns": span.t1_ns,
        "first": span.first,
        "last": span.last,
    }


def refusal_of(raw: Any) -> Refusal:
    """Decode a refused allocation request."""
    refusal = Fields(raw, "a refused request")
    stack = refusal.items("stack")
    if len(stack) > MAX_FRAMES:
        raise FileFormatError(f"a refused request has {len(stack):,} frames")
    return Refusal(
        t_ns=refusal.time("t_ns"),
        device=refusal.number("device", _MAX_ORDINAL),
        wanted=refusal.number("wanted"),
        free=refusal.count("free"),
        limit=refusal.maybe(refusal.number, "limit"),
        allocated=refusal.maybe(refusal.count, "allocated"),
        reserved=refusal.maybe(refusal.count, "reserved"),
        stack=tuple(map(frame_of, stack)),
        layer=refusal.maybe(refusal.text, "layer"),
        operator=refusal.maybe(refusal.text, "operator"),
        progress=refusal.maybe(refusal.fraction, "progress"),
        evaluating=refusal.flag("evaluating"),
        thread=refusal.maybe(refusal.text, "thread"),
        call=_running_call_of(refusal.object("call")),
        decoding=_decoding_of(refusal.object("decoding")),
    )


def _decoding_of(raw: dict[str, Any]) -> ImageDecoding | None:
    decoding = Fields(raw, "a refused request's decoding")
    if not raw:
        return None
    return ImageDecoding(
        name=decoding.maybe(decoding.text, "name"),
        images=decoding.number("images"),
        pixels=decoding.number("pixels"),
        tile=decoding.number("tile"),
        pixel_bytes=decoding.number("pixel_bytes"),
        sliced=decoding.flag("sliced"),
        tiled=decoding.flag("tiled"),
    )


def _running_call_of(raw: dict[str, Any]) -> RunningCall | None:
    call = Fields(raw, "a refused request's call")
    if not raw:
        return None
    return RunningCall(
        block=call.number("block"),
        blocks=call.number("blocks"),
        result=call.number("result"),
        result_bytes=call.number("result_bytes"),
        labels=call.flag("labels"),
        cache=call.numbers("cache"),
        cached=call.number("cached"),
        unread=call.flag("unread"),
        offloads=call.flag("offloads"),
        heads=call.number("heads", least=1),
        tokens_left=call.maybe(call.number, "tokens_left"),
        samples=call.maybe(call.number, "samples"),
    )


def refusal_json(refusal: Refusal) -> dict[str, Any]:
    """Encode a refused request for `refusal_of`."""
    return {
        "t_ns": refusal.t_ns,
        "device": refusal.device,
        "wanted": refusal.wanted,
        "free": refusal.free,
        "limit": refusal.limit,
        "allocated": refusal.allocated,
        "reserved": refusal.reserved,
        "stack": [
            {"file": frame.file, "line": frame.line, "function": frame.function}
            for frame in refusal.stack
        ],
        "layer": refusal.layer,
        "operator": refusal.operator,
        "progress": refusal.progress,
        "evaluating": refusal.evaluating,
        "thread": refusal.thread,
        "call": None if refusal.call is None else asdict(refusal.call),
        "decoding": None if refusal.decoding is None else asdict(refusal.decoding),
    }


def source_of(raw: Any) -> Source:
    """Decode the recorded code."""
    source = Fields(raw, "the recorded code")
    lines = source.texts("lines")
    if len(lines) > MAX_LINES:
        raise FileFormatError(f"the recorded code has {len(lines):,} lines")
    return Source(source.text("file"), lines)


def source_json(source: Source) -> dict[str, Any]:
    """Encode the recorded code for `source_of`."""
    return {"file": source.file, "lines": list(source.lines)}


def info_of(raw: Any) -> DeviceInfo:
    """Decode a card's properties."""
    info = Fields(raw, "a card's info")
    capability = info.maybe(lambda name: info.numbers(name, 99), "capability")
    if capability and len(capability) != 2:
        raise FileFormatError("a card's compute capability is no pair of numbers")
    total, spilled = info.count("total_bytes"), info.maybe(info.count, "spilled_bytes") or 0
    if spilled > total:
        raise FileFormatError("the host held more of a card's bytes than there are")
    return DeviceInfo(
        index=info.number("index", _MAX_ORDINAL),
        name=info.text("name"),
        total_bytes=total,
        virtual=info.flag("virtual"),
        torch=info.text("torch"),
        capability=(capability[0], capability[1]) if capability else None,
        driver_bytes=info.maybe(info.count, "driver_bytes") or 0,
        kind=info.maybe(info.text, "kind") or "cuda",
        allocator=info.maybe(info.text, "allocator") or "native",
        shared=info.maybe(info.flag, "shared") or False,
        wddm=info.maybe(info.flag, "wddm") or False,
        spilled_bytes=spilled,
        engine=info.maybe(info.text, "engine") or "",
    )


def info_json(info: DeviceInfo) -> dict[str, Any]:
    """Encode a card's properties for `info_of`."""
    return {
        "index": info.index,
        "name": info.name,
        "total_bytes": info.total_bytes,
        "virtual": info.virtual,
        "torch": info.torch,
        "capability": info.capability,
        "driver_bytes": info.driver_bytes,
        "kind": info.kind,
        "allocator": info.allocator,
        "shared": info.shared,
        "wddm": info.wddm,
        "spilled_bytes": info.spilled_bytes,
        "engine": info.engine,
    }
