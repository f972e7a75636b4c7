"""Validate a session from a file before its indices are used.

Every message is the middle of a sentence: the reader adds the file's name as a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.errors import FileFormatError
from nbmem.core.files.size_limits import MAX_CARDS, MAX_FRAMES, Limits
from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN, Action, BlockState, Columns, Events, Layout
from nbmem.core.session.holders import HolderKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.session.frameworks import FrameworkReadings
    from nbmem.core.session.host_memory import MachineReadings
    from nbmem.core.session.session import DeviceTrace, Holders, Session

MAX_BYTES = 1 << 50
"""Limit for a card, a block or a reading: a PiB."""
LAST_NS = 1 << 62
"""Nanoseconds since the epoch: the year 2116."""
MAX_OWNERS = 100
"""Libraries that hold memory on one card."""
_HIGHEST = 1 << 62
"""Highest address."""
_DEPTH = 100
"""Nesting depth of spans: cells, phases, blocks of the user's."""
_SUM = float(1 << 62)
"""Bytes of all events together, so that sums of them are exact."""


def check(session: Session, limits: Limits) -> None:
    """Check all indices and all numbers of a session.

    Raises:
        FileFormatError: Something is out of its range.
    """
    if len(session.devices) > MAX_CARDS:
        _refuse(f"it has {len(session.devices)} cards; at most {MAX_CARDS} are read")
    if len({trace.info.index for trace in session.devices}) < len(session.devices):
        _refuse("two of its cards have one number")
    events = sum(len(trace.events) for trace in session.devices)
    if events > limits.events:
        _refuse(f"it has {events:,} events; at most {limits.events:,} are read")
    rows = len(session.names) + len(session.notes) + len(session.spans) + len(session.refusals)
    rows += sum(map(_rows, session.devices))
    if rows > limits.texts:
        _refuse(f"it has {rows:,} names, spans and blocks; at most {limits.texts:,} are read")
    frames = [len(stack) for stack in session.stacks]
    if sum(frames) > limits.frames or max(frames, default=0) > MAX_FRAMES:
        _refuse(f"its stacks have {sum(frames):,} frames")
    for at, trace in enumerate(session.devices):
        _device(trace, stacks=len(session.stacks), names=len(session.names))
        _spans(session, at, len(trace.events))


def check_card(events: Events, layouts: Mapping[str, Layout], stacks: int) -> None:
    """Check the events and layouts of one card.

    Raises:
        FileFormatError: Something is out of its range.
    """
    _events(events, stacks)
    for when, layout in layouts.items():
        _layout(when, layout, stacks)


def _rows(trace: DeviceTrace) -> int:
    tables: list[Columns] = [
        trace.counter_samples,
        trace.samples,
        trace.storage_labels,
        trace.end.blocks,
    ]
    tables += [trace.start.blocks] if trace.start is not None else []
    tables += [trace.holders] if trace.holders is not None else []
    tables += [trace.before_return.holders] if trace.before_return is not None else []
    tables += [trace.owners] if trace.owners is not None else []
    tables += [trace.machine] if trace.machine is not None else []
    tables += [trace.calls] if trace.calls is not None else []
    tables += [trace.collected] if trace.collected is not None else []
    tables += [trace.block_uses] if trace.block_uses is not None else []
    return sum(map(len, tables))


def _device(trace: DeviceTrace, *, stacks: int, names: int) -> None:
    count = len(trace.events)
    start = {} if trace.start is None else {"start": trace.start}
    check_card(trace.events, {"end": trace.end, **start}, stacks)
    _within("marks.position", trace.counter_samples.position, 0, count)
    _within("samples.t_ns", trace.samples.t_ns, 0, LAST_NS)
    _within("marks.t_ns", trace.counter_samples.t_ns, 0, LAST_NS)
    for table in (trace.counter_samples, trace.samples):
        for name, column in table.columns():
            if name not in {"position", "t_ns"}:
                _within(name, column, NOT_KNOWN, MAX_BYTES)
    seen = trace.storage_labels
    _within("identities.position", seen.position, 0, count)
    _within("identities.addr", seen.addr, 0, _HIGHEST)
    _within("identities.size", seen.size, 0, MAX_BYTES)
    _within("identities.category", seen.category, 0, max(Category))
    _within("identities.name", seen.name, -1, names - 1)
    if trace.holders is not None:
        _holders("holders", trace.holders, names)
    if trace.before_return is not None:
        _holders("before_return", trace.before_return.holders, names)
        _within("before_return.freed", np.array([trace.before_return.freed]), 0, count)
        _within(
            "before_return.event",
            np.array([trace.before_return.event]),
            0,
            trace.before_return.freed,
        )
    if trace.owners is not None:
        _frameworks(trace.owners, names)
    if trace.machine is not None:
        _machine(trace.machine)
    _loop(trace, names)


def _holders(table: str, held: Holders, names: int) -> None:
    _within(f"{table}.addr", held.addr, 0, _HIGHEST)
    _within(f"{table}.size", held.size, 0, MAX_BYTES)
    _within(f"{table}.kind", held.kind, 0, max(HolderKind))
    for name in ("form", "root", "path"):
        _within(f"{table}.{name}", getattr(held, name), 0, names - 1)


def _loop(trace: DeviceTrace, names: int) -> None:
    count = len(trace.events)
    if trace.calls is not None:
        _within("calls.first", trace.calls.first, NOT_KNOWN, count)
        _within("calls.last", trace.calls.last, 0, count)
        _within("calls.name", trace.calls.name, 0, names - 1)
    if trace.collected is not None:
        _within("collected.event", trace.collected.event, 0, count - 1)
        _within("collected.collection", trace.collected.collection, 0, count)
    if trace.block_uses is not None:
        _within("block_uses.addr", trace.block_uses.addr, 0, _HIGHEST)
        _within("block_uses.made", trace.block_uses.made, 0, count)
        _within("block_uses.last", trace.block_uses.last, 0, count)
        _within("block_uses.used", trace.block_uses.used, 0, _HIGHEST)
        _within("block_uses.in_backward", trace.block_uses.in_backward, 0, 1)


def _frameworks(readings: FrameworkReadings, names: int) -> None:
    _within("owners.t_ns", readings.t_ns, 0, LAST_NS)
    _within("owners.owner", readings.owner, 0, names - 1)
    _within("owners.held", readings.held, 0, MAX_BYTES)
    _within("owners.used", readings.used, NOT_KNOWN, MAX_BYTES)
    _within("owners.managed", readings.managed, 0, MAX_BYTES)
    if (readings.used > readings.held).any():
        _refuse("an owner of memory uses more than it holds")
    if (np.diff(readings.t_ns) < 0).any():
        _refuse("the readings of its owners of memory are not in the order of time")
    if len(np.unique(readings.owner)) > MAX_OWNERS:
        _refuse(f"more than {MAX_OWNERS} owners hold memory of a card")


def _machine(read: MachineReadings) -> None:
    _within("machine.t_ns", read.t_ns, 0, LAST_NS)
    for name, column in read.columns():
        if name != "t_ns":
            _within(f"machine.{name}", column, NOT_KNOWN, MAX_BYTES)
    if (np.diff(read.t_ns) < 0).any():
        _refuse("the readings of its machine are not in the order of time")


def _events(events: Events, stacks: int) -> None:
    _within("events.action", events.action, 0, max(Action))
    _within("events.addr", events.addr, 0, _HIGHEST)
    _within("events.t_ns", events.t_ns, 0, LAST_NS)
    _within("events.stack", events.stack, -1, stacks - 1)
    is_oom = events.action == Action.OOM  # a program may request any size
    _within("events.size", events.size[is_oom], 0, _HIGHEST)
    served = events.size[~is_oom]
    _within("events.size", served, 0, MAX_BYTES)
    if served.sum(dtype=np.float64) > _SUM:
        _refuse("its events are of more bytes than can be added up")


def _layout(when: str, layout: Layout, stacks: int) -> None:
    segments, blocks = layout.segments, layout.blocks
    _within("segments.addr", segments.addr, 0, _HIGHEST)
    _within("segments.size", segments.size, 1, MAX_BYTES)
    _within("segments.small", segments.small, 0, 1)
    _within("segments.expandable", segments.expandable, 0, 1)
    _within("segments.pool", segments.pool, -_HIGHEST, _HIGHEST)
    _within("blocks.addr", blocks.addr, 0, _HIGHEST)
    _within("blocks.size", blocks.size, 1, MAX_BYTES)
    _within("blocks.state", blocks.state, 0, max(BlockState))
    _within("blocks.stack", blocks.stack, -1, stacks - 1)
    used = blocks.state != BlockState.INACTIVE
    _within("blocks.requested", blocks.requested[used], 0, MAX_BYTES)
    if (blocks.requested[used] > blocks.size[used]).any():
        _refuse(f"blocks at its {when} are smaller than what was asked for")
    ends = segments.addr + segments.size
    if (segments.addr[1:] < ends[:-1]).any():
        _refuse(f"segments at its {when} overlap, or are not in the order of their addresses")
    # Blocks normally fill their segments, but snapshots that were cut manually are also read.
    stops = blocks.addr + blocks.size
    if (blocks.addr[1:] < stops[:-1]).any():
        _refuse(f"blocks at its {when} overlap, or are not in the order of their addresses")
    home = np.searchsorted(segments.addr, blocks.addr, "right") - 1
    if (home < 0).any() or (stops > ends[home]).any():
        _refuse(f"blocks at its {when} lie in no segment")


def _spans(session: Session, device: int, events: int) -> None:
    """Check the positions of the spans in one card's events."""
    cards = len(session.devices)
    if any(len(span.first) != cards or len(span.last) != cards for span in session.spans):
        _refuse("a span does not say where it lies in the events of each card")
    first = np.array([span.first[device] for span in session.spans], np.int64)
    last = np.array([span.last[device] for span in session.spans], np.int64)
    _within("spans.first", first, 0, events)
    _within("spans.last", last, 0, events)
    if (first > last).any():
        _refuse("a span ends before it begins")
    if int((last - first).sum()) > _DEPTH * (events + 1):
        _refuse(f"more than {_DEPTH} of its spans lie in each other")


def _within(name: str, column: NDArray[Any], least: int, most: int) -> None:
    if not len(column):
        return
    low, high = int(column.min()), int(column.max())
    if low < least or high > most:
        wrong = low if low < least else high
        _refuse(f"its column {name} has {wrong}, where {least} to {most} may stand")


def _refuse(why: str) -> None:
    raise FileFormatError(why)
