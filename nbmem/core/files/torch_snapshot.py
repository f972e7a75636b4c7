"""Convert torch's memory snapshots, from files or live dicts, to columns.

Torch adds keys and actions between releases: the needed ones are named here, the rest is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.errors import FileFormatError
from nbmem.core.files.allocator_settings import plain_settings
from nbmem.core.files.safe_pickle import load_plain
from nbmem.core.files.size_limits import HOW_TO_RAISE, MAX_CARDS, Limits
from nbmem.core.files.stacks import Stacks
from nbmem.core.files.untrusted_input import read_content
from nbmem.core.session.events import Action, Blocks, BlockState, Events, Layout, Segments, Stack

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.arrays import Ints

# Names as in torch/csrc/cuda/memory_snapshot.cpp:
# https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/cuda/memory_snapshot.cpp
ACTIONS: dict[str, Action] = {action.name.lower(): action for action in Action}
STATES: dict[str, BlockState] = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,  # the name in torch's own docstring
}
_LAST_US = 1 << 53
"""Microseconds: the year 2255. A larger time in nanoseconds would not fit an int64."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceHistory:
    """The history of one device in a torch snapshot.

    Attributes:
        events: The allocator's actions, oldest first.
        layout_at_end: Every segment and block when the snapshot was taken.
        stacks: The Python stacks that events and blocks refer to.
        settings: The allocator's settings, as torch names them.
        skipped: Entries of a kind that nbmem does not know.
    """

    events: Events
    layout_at_end: Layout
    stacks: tuple[Stack, ...]
    settings: Mapping[str, Any]
    skipped: int


def load_snapshot(path: str | Path, limits: Limits | None = None) -> dict[str, Any]:
    """Read a snapshot file of torch's, plain or packed with xz or gzip.

    torch.cuda.memory._dump_snapshot writes such files.

    Raises:
        UsageError: There is no such file.
        FileFormatError: It is too large, truncated, hostile, or of another kind.
    """
    limits = limits or Limits()
    return snapshot_from_bytes(read_content(path, limits), str(path), limits)


def snapshot_from_bytes(data: bytes, name: str, limits: Limits | None = None) -> dict[str, Any]:
    """Load a pickled snapshot without executing any code.

    Raises:
        FileFormatError: It is truncated, hostile, or of another kind.
    """
    try:
        raw = load_plain(data)
    except FileFormatError as err:
        raise FileFormatError(f"{name} is not a snapshot of torch's. {err}") from None
    except Exception as err:  # a broken pickle can raise almost anything
        raise FileFormatError(
            f"{name} is truncated or is not a pickle: {str(err)[:200] or type(err).__name__}. "
            "Write it with torch.cuda.memory._dump_snapshot(path)."
        ) from err
    if type(raw) is not dict or not {"segments", "device_traces"} <= raw.keys():
        raise FileFormatError(
            f"{name} is a pickle, but not a snapshot of torch's: it lacks segments and "
            "device_traces. Write it with torch.cuda.memory._dump_snapshot(path)."
        )
    traces = raw["device_traces"]
    if type(traces) is not list or not {list} >= set(map(type, traces)):
        raise FileFormatError(
            f"{name} is not a snapshot of torch's: its device_traces are no lists of events."
        )
    events, most = sum(map(len, traces)), (limits or Limits()).events
    if len(traces) > MAX_CARDS or events > most:
        raise FileFormatError(
            f"{name} has {events:,} events of {len(traces):,} cards; at most {most:,} of "
            f"{MAX_CARDS} are read. {HOW_TO_RAISE}"
        )
    return raw


def device_history(raw: Mapping[str, Any], device: int) -> DeviceHistory:
    """Read one device's history from a snapshot.

    The snapshot comes from a file or from torch's `_snapshot()`.

    Raises:
        FileFormatError: A part has another shape than torch's.
    """
    stacks = Stacks()
    traces = raw.get("device_traces") or ()
    try:
        trace = traces[device] if 0 <= device < len(traces) else ()
        events, skipped = _events(trace, stacks)
        segments = [s for s in raw.get("segments") or () if s.get("device", 0) == device]
        layout = _layout(segments, stacks)
        settings = plain_settings(raw.get("allocator_settings") or {})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as err:
        raise FileFormatError(
            f"The snapshot's part for device {device} is not as torch writes it: {repr(err)[:200]}."
        ) from err
    return DeviceHistory(
        events=events,
        layout_at_end=layout,
        stacks=tuple(stacks.found),
        settings=settings,
        skipped=skipped,
    )


def _events(trace: Sequence[Mapping[str, Any]], stacks: Stacks) -> tuple[Events, int]:
    actions = [entry["action"] for entry in trace]
    _require_type(str, "an action", actions)
    known = list(map(ACTIONS.get, actions))
    if None in known:
        trace = [entry for entry, action in zip(trace, known, strict=True) if action is not None]
        known = [action for action in known if action is not None]
    codes = np.fromiter(known, np.uint8, len(known))
    addr = [entry.get("addr", 0) for entry in trace]
    for row in np.flatnonzero(codes == Action.OOM).tolist():
        free = trace[row].get("device_free")
        addr[row] = addr[row] if free is None else free
    t_us = _ints("time_us", [entry.get("time_us", 0) for entry in trace])
    if len(t_us) and not 0 <= t_us.min() <= t_us.max() < _LAST_US:
        raise ValueError("time_us is no time since 1970")
    events = Events(
        action=codes,
        addr=_ints("addr", addr),
        size=_ints("size", [entry["size"] for entry in trace]),
        stream=_ints("stream", [entry.get("stream", 0) for entry in trace]),
        t_ns=t_us * 1000,
        stack=stacks.indices_of([entry.get("frames") for entry in trace]),
    )
    return events, len(actions) - len(codes)


def _require_type(kind: type, what: str, values: list[Any]) -> None:
    """Require that all values have exactly one type; a bool is no int.

    All types are compared at once.
    """
    others = set(map(type, values)) - {kind}
    if others:
        raise TypeError(f"{what} is of type {others.pop().__name__}")


def _ints(name: str, values: list[Any]) -> Ints:
    _require_type(int, name, values)
    return np.fromiter(values, np.int64, len(values))


def _int(name: str, value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value


def _layout(raw: Sequence[Mapping[str, Any]], stacks: Stacks) -> Layout:
    segments, blocks = [], []
    _ints("address", [segment["address"] for segment in raw])
    for segment in sorted(raw, key=itemgetter("address")):
        addr = segment["address"]
        segments.append(
            (
                addr,
                _int("total_size", segment["total_size"]),
                _int("stream", segment.get("stream", 0)),
                int(segment.get("segment_type") == "small"),
                int(bool(segment.get("is_expandable"))),
                pool_number(segment.get("segment_pool_id") or (0, 0)),
            )
        )
        for block in segment["blocks"]:
            # Torch before 2.0 wrote no addresses: blocks follow each other.
            addr = _int("address", block.get("address", addr))
            size = _int("size", block["size"])
            requested = _int("requested_size", block.get("requested_size", size))
            state = STATES[block["state"]]
            blocks.append((addr, size, requested, int(state), stacks.index_of(block.get("frames"))))
            addr += size
    return Layout(segments=Segments.from_rows(segments), blocks=Blocks.from_rows(blocks))


def pool_number(pool_id: Sequence[int]) -> int:
    """Encode torch's pool ID pair as one number.

    0 is the default pool, n stands for (0, n) and -n for (n, 0).

    Captures number their own pools in the first part, `graph_pool_handle` and MemPool in the
    second; the other part is 0.
    """
    first, second = _int("segment_pool_id", pool_id[0]), _int("segment_pool_id", pool_id[1])
    return second or -first


def pool_id(number: int) -> tuple[int, int]:
    """Decode a number of `pool_number` into torch's pool ID pair."""
    return (-number, 0) if number < 0 else (0, number)
