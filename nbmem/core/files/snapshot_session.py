"""Convert a torch memory snapshot into a session.

A recording that the user made without nbmem can then be read like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nbmem.core.errors import FileFormatError
from nbmem.core.files.session_checks import check
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.torch_snapshot import device_history, load_snapshot
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.garbage_collector import without_collector
from nbmem.core.session.cards import before_each, fullest, highest_reserved, reserved_before
from nbmem.core.session.events import Action, BlockState, Columns, Events, Stack
from nbmem.core.session.session import (
    CardSamples,
    CounterSamples,
    DeviceInfo,
    DeviceTrace,
    Session,
    Source,
    StorageLabels,
)
from nbmem.core.session.source_files import recorded_file
from nbmem.core.session.spans import Span
from nbmem.core.session.stack_phases import phases_of
from nbmem.core.session.tensor_names import printable_text
from nbmem.core.units import MIB, format_bytes

NOTE = (
    "A snapshot of torch's names neither the card nor weights or gradients: the total is the "
    "highest reserved figure, and phases are told from its Python stacks, if it has any. Trace "
    "with nbmem to have them."
)
LOST = (
    "torch's history was full when this snapshot was dumped, so its oldest events are missing. "
    "What was allocated before the first one that is left has neither a time nor a line. Give "
    "_record_memory_history() larger max_entries, or dump earlier."
)
"""torch 2.13 does not say so; later ones do, for all devices together.
https://github.com/pytorch/pytorch/pull/179276"""
_C = TypeVar("_C", bound=Columns)
_LEFTOVER = MIB
"""How much larger a block may be than its tensor; old releases wrote only its size."""
UNKNOWN_RELEASE = "2.13.0"
"""A snapshot does not contain torch's version; block sizes have been equal since 2.4."""


def session_of_snapshot(path: str | Path, limits: Limits | None = None) -> Session:
    """Read a file written by torch.cuda.memory._dump_snapshot().

    A snapshot has neither the card nor storage labels: the total is the highest reserved figure,
    and what the allocator cannot know is unknown. Phases are derived from the stacks of its fullest
    card.

    Raises:
        UsageError: There is no such file.
        FileFormatError: It is too large, truncated, hostile, of another kind, or empty.
    """
    limits = limits or Limits()
    session = without_collector(lambda: _session(load_snapshot(path, limits), path))
    try:
        check(session, limits)
        for trace in session.devices:
            _check_sums(trace)
    except FileFormatError as err:
        raise FileFormatError(f"{path} is not a snapshot as torch writes it: {err}.") from None
    return session


def _session(raw: dict[str, Any], path: str | Path) -> Session:
    devices: list[DeviceTrace] = []
    stacks: list[Stack] = []
    skipped = 0
    lost = False
    for index in range(len(raw["device_traces"])):
        history = device_history(raw, index)
        lost |= history.settings.get("trace_alloc_overflowed") is True
        skipped += history.skipped
        events = history.events
        if not len(events) and not len(history.layout_at_end.segments):
            continue
        moved = np.where(events.stack < 0, events.stack, events.stack + len(stacks))
        stacks.extend(history.stacks)
        devices.append(
            DeviceTrace(
                info=DeviceInfo(
                    index=index,
                    name=f"card {index} of a snapshot",
                    total_bytes=highest_reserved(events, history.layout_at_end),
                    virtual=False,
                    torch="unknown",
                ),
                release=UNKNOWN_RELEASE,
                settings=history.settings,
                start=None,
                events=Events(**{**dict(events.columns()), "stack": moved}),
                end=history.layout_at_end,
                dropped=0,
                counter_samples=_none(CounterSamples),
                samples=_none(CardSamples),
                storage_labels=_none(StorageLabels),
            )
        )
    if not devices:
        raise FileFormatError(
            f"{path} is a snapshot without any memory in it. Record with "
            "torch.cuda.memory._record_memory_history() before the code, dump behind it."
        )
    notes = [NOTE]
    if lost:
        notes.append(LOST)
    if skipped:
        notes.append(f"{skipped} entries of a kind that this nbmem does not know were skipped.")
    return Session(
        name=printable_text(Path(path).name.split(".")[0]),
        created_ns=CLOCK.time_ns(),
        devices=tuple(devices),
        spans=(_whole(devices), *_phases(devices, stacks)),
        stacks=tuple(stacks),
        notes=tuple(notes),
        source=None if (file := recorded_file(stacks)) is None else Source(printable_text(file)),
    )


def _check_sums(trace: DeviceTrace) -> None:
    """Refuse a history that does not fit the layout at its end.

    Raises:
        FileFormatError: At some moment more was in use than was held from the driver.
    """
    events, blocks = trace.events, trace.end.blocks
    reserved = reserved_before(events, trace.end)
    used = blocks.state != BlockState.INACTIVE
    at_end = int(blocks.requested[used].sum())
    in_use = before_each(events, (Action.ALLOC,), (Action.FREE_COMPLETED,), at_end)
    at = int(np.argmax(in_use - reserved))
    if in_use[at] - reserved[at] > _LEFTOVER * int(used.sum()):
        raise FileFormatError(
            f"by it card {trace.info.index} had {format_bytes(int(in_use[at]))} in use before "
            f"event {at}, where torch held only {format_bytes(int(reserved[at]))} from the driver. "
            "Its events and its segments do not belong together: it was cut, put together or made "
            "up"
        )


def _phases(devices: Sequence[DeviceTrace], stacks: Sequence[Stack]) -> Iterator[Span]:
    """Yield the phases of the fullest card, placed on the others by time.

    On the fullest card their positions in the events are exact.
    """
    main = fullest(devices)
    for span in phases_of(devices[main].events, stacks):
        places = [
            (span.first[0], span.last[0])
            if index == main
            else np.searchsorted(device.events.t_ns, (span.t0_ns, span.t1_ns)).tolist()
            for index, device in enumerate(devices)
        ]
        first, last = zip(*places, strict=True)
        yield replace(span, first=first, last=last)


def _whole(devices: list[DeviceTrace]) -> Span:
    times = [d.events.t_ns for d in devices if len(d.events)]
    return Span(
        kind="cell",
        name="snapshot",
        t0_ns=min((int(t[0]) for t in times), default=0),
        t1_ns=max((int(t[-1]) for t in times), default=0),
        first=(0,) * len(devices),
        last=tuple(len(d.events) for d in devices),
    )


def _none(kind: type[_C]) -> _C:
    codes = {"category", "kind"}
    return kind(
        **{
            field.name: np.zeros(0, np.uint8 if field.name in codes else np.int64)
            for field in fields(kind)  # type: ignore[arg-type]
        }
    )
