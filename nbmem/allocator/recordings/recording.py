"""Recordings of one card's allocator, from any supported file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.files.allocator_settings import plain_settings
from nbmem.core.files.archive import plain_json
from nbmem.core.files.recording import is_session
from nbmem.core.files.session import open_session
from nbmem.core.files.session_checks import check_card
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.torch_snapshot import DeviceHistory, device_history, snapshot_from_bytes
from nbmem.core.files.untrusted_input import read_content
from nbmem.core.runtime.garbage_collector import without_collector
from nbmem.core.session.cards import highest_reserved
from nbmem.core.session.events import Action, Events, Layout, Stack
from nbmem.core.session.tensor_names import printable_text

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceTrace

COUNTERS = ("allocated", "active", "requested", "reserved", "inactive_split")
PEAKS = ("peak_allocated", "peak_requested", "peak_reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters that torch itself reported during a recording.

    Attributes:
        label: When, in words.
        position: Index of the first event after it.
        t_ns: When, nanoseconds since the epoch; None if `position` is exact.
        values: Bytes by name, of COUNTERS and PEAKS; peaks are since the reading before.
    """

    label: str
    position: int
    t_ns: int | None
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CardRecording:
    """The recording of one card, as a file has it.

    Attributes:
        name: A name to show.
        device: CUDA ordinal.
        events: The allocator's actions.
        start: Every segment and block before them; None if not recorded.
        end: Every segment and block after them; None if not recorded.
        settings: As torch names them.
        release: The release of torch; None if not recorded.
        total_bytes: Bytes of the card; None if not recorded.
        stacks: What the events' stacks refer to.
        readings: torch's own counters, in order.
        notes: Notes for the reader, one sentence each.
    """

    name: str
    device: int
    events: Events
    start: Layout | None
    end: Layout | None
    settings: Mapping[str, Any]
    release: str | None = None
    total_bytes: int | None = None
    stacks: tuple[Stack, ...] = ()
    readings: tuple[Reading, ...] = ()
    notes: tuple[str, ...] = field(default=())


def read_card(
    path: str | Path, device: int | None = None, limits: Limits | None = None
) -> CardRecording:
    """Read one card from a torch snapshot, a JSON trace or a session.

    The file may be packed with xz or gzip.

    Args:
        path: The file.
        device: Which card; None: the one that held the most.
        limits: How large the file may be; None for the default.

    Raises:
        UsageError: There is no such file, or it has nothing about this card.
        FileFormatError: It is none of these, or broken.
    """
    limits = limits or Limits()
    if is_session(path, limits):
        return _from_session(path, device, limits)
    name, data = printable_text(Path(path).name), read_content(path, limits)
    if data.lstrip()[:1] == b"{":
        return _checked(_from_json(data, name, limits), path)
    return without_collector(lambda: _checked(_from_snapshot(data, path, device, limits), path))


def _checked(recording: CardRecording, path: str | Path) -> CardRecording:
    ends = {"start": recording.start, "end": recording.end}
    layouts = {when: layout for when, layout in ends.items() if layout is not None}
    try:
        check_card(recording.events, layouts, len(recording.stacks))
    except FileFormatError as err:
        raise FileFormatError(f"{path} is not as torch writes it: {err}.") from None
    return recording


def _from_snapshot(
    data: bytes, path: str | Path, device: int | None, limits: Limits
) -> CardRecording:
    raw = snapshot_from_bytes(data, str(path), limits)
    traces = raw["device_traces"]
    if not any(traces):
        raise FileFormatError(
            f"{path} holds no history of events. Record one with "
            "torch.cuda.memory._record_memory_history() before the snapshot is taken."
        )
    busy = [index for index, trace in enumerate(traces) if trace]
    wanted = [index for index in busy if device in (None, index)]
    histories = {index: device_history(raw, index) for index in wanted}
    held = {i: highest_reserved(h.events, h.layout_at_end) for i, h in histories.items()}
    chosen = _choose(held, device, busy)
    notes = _other_cards(busy, chosen)
    history = histories[chosen]
    if history.skipped:
        notes = (*notes, f"{history.skipped} entries of kinds that nbmem does not know.")
    return _from_history(history, printable_text(Path(path).name), chosen, notes)


def _from_history(
    history: DeviceHistory, name: str, device: int, notes: tuple[str, ...]
) -> CardRecording:
    return CardRecording(
        name=name,
        device=device,
        events=history.events,
        start=None,
        end=history.layout_at_end,
        settings=history.settings,
        stacks=history.stacks,
        notes=notes,
    )


def _choose(held: Mapping[int, int], device: int | None, found: Sequence[int]) -> int:
    if device is None:
        return max(held, key=lambda index: held[index])
    if device not in found:
        raise UsageError(f"The recording has nothing about card {device}, only {sorted(found)}.")
    return device


def _other_cards(found: Sequence[int], chosen: int) -> tuple[str, ...]:
    others = [index for index in found if index != chosen]
    return (f"Only card {chosen} was replayed, not {others}.",) if others else ()


def _from_session(path: str | Path, device: int | None, limits: Limits) -> CardRecording:
    session = open_session(path, limits)
    traces = {trace.info.index: trace for trace in session.devices}
    if not traces:
        raise UsageError(f"{path} is a session without a card: there is nothing to replay.")
    held = {i: highest_reserved(trace.events, trace.end) for i, trace in traces.items()}
    chosen = _choose(held, device, list(traces))
    trace = traces[chosen]
    if not trace.info.keeps_history:
        raise UsageError(
            f"{path} is of {trace.info.name}, whose allocator keeps no history: there is nothing "
            "to replay."
        )
    return CardRecording(
        name=session.name,
        device=chosen,
        events=trace.events,
        start=trace.start,
        end=trace.end,
        settings=trace.settings,
        release=trace.release or None,
        total_bytes=trace.info.total_bytes,
        stacks=session.stacks,
        readings=_readings_of_session(trace),
        notes=_other_cards(sorted(traces), chosen),
    )


def _readings_of_session(trace: DeviceTrace) -> tuple[Reading, ...]:
    counter_samples = trace.counter_samples
    names = COUNTERS[:4]
    columns = [getattr(counter_samples, name).tolist() for name in names]
    rows = zip(counter_samples.position.tolist(), zip(*columns, strict=True), strict=True)
    return tuple(
        Reading(
            label=f"reading {number}",
            position=position,
            t_ns=None,
            values={n: v for n, v in zip(names, values, strict=True) if v >= 0},
        )
        for number, (position, values) in enumerate(rows)
    )


def _from_json(data: bytes, name: str, limits: Limits) -> CardRecording:
    """Read a JSON trace: event columns, final segments and counters.

    The counters were read between phases.
    """
    try:
        raw = plain_json(data, name, limits)
        codes = [Action[text.upper()] for text in raw["actions"]]
        events = Events.from_rows((codes[row[0]], *row[1:5], -1) for row in raw["events"])
        events = replace(events, t_ns=events.t_ns * 1000)
        segments = raw.get("segments")
        end = device_history({"segments": segments}, 0).layout_at_end if segments else None
        return CardRecording(
            name=printable_text(str(raw.get("name", name))),
            device=0,
            events=events,
            start=None if end else Layout.empty(),
            end=end,
            settings=plain_settings(raw.get("settings") or {}),
            release=None if raw.get("torch") is None else printable_text(str(raw["torch"])),
            total_bytes=raw.get("total_memory") and int(raw["total_memory"]),
            readings=_readings_of_json(raw.get("bounds") or (), events),
        )
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as err:
        raise FileFormatError(
            f"{name} is JSON, but not a trace with actions and events: {repr(err)[:200]}."
        ) from err


def _readings_of_json(rows: Sequence[Mapping[str, Any]], events: Events) -> tuple[Reading, ...]:
    return tuple(
        Reading(
            label=f"end of {row.get('end_of', 'phase')} {row.get('it', '')}".rstrip(),
            position=int(np.searchsorted(events.t_ns, row["t"] * 1000, "right")),
            t_ns=row["t"] * 1000,
            values={name: int(row[name]) for name in (*COUNTERS, *PEAKS) if name in row},
        )
        for row in rows
    )
