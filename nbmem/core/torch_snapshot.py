"""The one border for torch's memory snapshots: files and live dicts in, our columns out.

Torch adds keys and actions between releases: what is needed is named here, the rest is ignored.
"""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.events import Action, Blocks, BlockState, Events, Frame, Layout, Segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nbmem.core.events import Stack

# Names as in torch/csrc/cuda/memory_snapshot.cpp:
# https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/cuda/memory_snapshot.cpp
ACTIONS: dict[str, Action] = {action.name.lower(): action for action in Action}
STATES: dict[str, BlockState] = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,  # torch's own docstring calls it so
}
_XZ, _GZIP = b"\xfd7zXZ\x00", b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceHistory:
    """What a torch snapshot says about one device.

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


class _PlainUnpickler(pickle.Unpickler):
    """Loads containers, text and numbers; whatever would have to be imported is refused."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise FileFormatError(
            f"The pickle wants {module_name}.{global_name}, which no snapshot of torch's holds: "
            "it could run code when loaded, so nothing of it was loaded."
        )

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise FileFormatError(
            f"The pickle refers to something outside of it ({pid!r}), as no snapshot of torch's "
            "does; nothing of it was loaded."
        )


def load_snapshot(path: str | Path) -> dict[str, Any]:
    """Read a file written by torch.cuda.memory._dump_snapshot, plain or packed with xz or gzip.

    Raises:
        UsageError: There is no such file.
        FileFormatError: It is truncated, hostile, or something else.
    """
    return snapshot_from_bytes(read_packed(path), str(path))


def read_packed(path: str | Path) -> bytes:
    """The bytes of a file, unpacked if they are packed with xz or gzip.

    Raises:
        UsageError: There is no such file, or it cannot be read.
        FileFormatError: It is packed and broken.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror or err}.") from err
    try:
        if data.startswith(_XZ):
            return lzma.decompress(data)
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (lzma.LZMAError, EOFError, OSError, MemoryError) as err:
        raise FileFormatError(f"{path} is packed and cannot be unpacked: {err}.") from err


def snapshot_from_bytes(data: bytes, name: str) -> dict[str, Any]:
    """Load a pickled snapshot without running anything.

    Args:
        data: The pickle.
        name: What to call it in a message.

    Raises:
        FileFormatError: It is truncated, hostile, or something else.
    """
    try:
        raw = _PlainUnpickler(io.BytesIO(data)).load()
    except FileFormatError as err:
        raise FileFormatError(f"{name} is not a snapshot of torch's. {err}") from None
    except Exception as err:  # a broken pickle can raise almost anything
        raise FileFormatError(
            f"{name} is truncated or is not a pickle: {err or type(err).__name__}. "
            "Write it with torch.cuda.memory._dump_snapshot(path)."
        ) from err
    if not isinstance(raw, dict) or not {"segments", "device_traces"} <= raw.keys():
        raise FileFormatError(
            f"{name} is a pickle, but not a snapshot of torch's: it lacks segments and "
            "device_traces. Write it with torch.cuda.memory._dump_snapshot(path)."
        )
    return raw


def device_history(raw: Mapping[str, Any], device: int) -> DeviceHistory:
    """Read what a snapshot says about one device, from a file or from torch's `_snapshot()`.

    Raises:
        FileFormatError: A part has another shape than torch's.
    """
    stacks = _Stacks()
    traces = raw.get("device_traces") or ()
    try:
        trace = traces[device] if 0 <= device < len(traces) else ()
        events, skipped = _events(trace, stacks)
        segments = [s for s in raw.get("segments") or () if s.get("device", 0) == device]
        layout = _layout(segments, stacks)
        settings = dict(raw.get("allocator_settings") or {})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as err:
        raise FileFormatError(
            f"The snapshot's part for device {device} is not as torch writes it: {err!r}."
        ) from err
    return DeviceHistory(
        events=events,
        layout_at_end=layout,
        stacks=tuple(stacks.found),
        settings=settings,
        skipped=skipped,
    )


def _events(trace: Sequence[Mapping[str, Any]], stacks: _Stacks) -> tuple[Events, int]:
    actions, addrs, sizes, owners, times, indices = [], [], [], [], [], []
    index_of = stacks.index_of
    for entry in trace:
        action = ACTIONS.get(entry["action"])
        if action is None:
            continue
        actions.append(action)
        addrs.append(entry.get("addr", 0) if action is not Action.OOM else _device_free(entry))
        sizes.append(entry["size"])
        owners.append(entry.get("stream", 0))
        times.append(entry.get("time_us", 0))
        indices.append(index_of(entry.get("frames")))
    events = Events(
        action=np.array(actions, np.uint8),
        addr=np.array(addrs, np.int64),
        size=np.array(sizes, np.int64),
        stream=np.array(owners, np.int64),
        t_ns=np.array(times, np.int64) * 1000,
        stack=np.array(indices, np.int64),
    )
    return events, len(trace) - len(actions)


def _device_free(entry: Mapping[str, Any]) -> int:
    free = entry.get("device_free")
    return int(entry.get("addr", 0) if free is None else free)


def _layout(raw: Iterable[Mapping[str, Any]], stacks: _Stacks) -> Layout:
    segments, blocks = [], []
    for segment in sorted(raw, key=lambda s: int(s["address"])):
        addr = int(segment["address"])
        segments.append(
            (
                addr,
                int(segment["total_size"]),
                int(segment.get("stream", 0)),
                int(segment.get("segment_type") == "small"),
                int(bool(segment.get("is_expandable"))),
                pool_number(segment.get("segment_pool_id") or (0, 0)),
            )
        )
        for block in segment["blocks"]:
            # Torch before 2.0 wrote no addresses: blocks follow each other.
            addr = int(block.get("address", addr))
            size = int(block["size"])
            state = STATES[block["state"]]
            asked = int(block.get("requested_size", size))
            blocks.append((addr, size, asked, int(state), stacks.index_of(block.get("frames"))))
            addr += size
    seg = np.array(segments, np.int64).reshape(-1, 6).T
    blk = np.array(blocks, np.int64).reshape(-1, 5).T
    return Layout(
        segments=Segments(
            addr=seg[0],
            size=seg[1],
            stream=seg[2],
            small=seg[3].astype(np.uint8),
            expandable=seg[4].astype(np.uint8),
            pool=seg[5],
        ),
        blocks=Blocks(
            addr=blk[0],
            size=blk[1],
            requested=blk[2],
            state=blk[3].astype(np.uint8),
            stack=blk[4],
        ),
    )


def pool_number(pool_id: Sequence[int]) -> int:
    """One number for torch's pair: 0 the default pool, n for (0, n), -n for (n, 0).

    Captures number their own pools in the first part, `graph_pool_handle` and MemPool in the
    second; the other part is 0.
    """
    first, second = int(pool_id[0]), int(pool_id[1])
    return second or -first


def pool_id(number: int) -> tuple[int, int]:
    """Torch's pair for a number that `pool_number` gave."""
    return (-number, 0) if number < 0 else (0, number)


_PLACE = itemgetter("filename", "line", "name")


class _Stacks:
    """Stacks met so far, each once.

    Torch shares the frames of equal stacks, so identity is asked first. It holds while the
    snapshot is alive, which is as long as this is. A file may hold copies instead.
    """

    def __init__(self) -> None:
        self.found: list[Stack] = []
        self._by_identity: dict[tuple[int, ...], int] = {}
        self._by_place: dict[tuple[tuple[Any, ...], ...], int] = {}

    def index_of(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        """Index of a stack; -1 for none."""
        if not frames:
            return -1
        key = tuple(map(id, frames))
        index = self._by_identity.get(key)
        if index is None:
            places = tuple(map(_PLACE, frames))
            index = self._by_place.get(places)
            if index is None:
                index = self._by_place[places] = len(self.found)
                self.found.append(
                    tuple(
                        Frame(file=str(file), line=int(line), function=str(function))
                        for file, line, function in places
                    )
                )
            self._by_identity[key] = index
        return index
