"""Compare the model's counters and layout with the recorded ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nbmem.allocator.recordings.recorded_driver import Divergence
from nbmem.allocator.recordings.recording import COUNTERS, PEAKS, CardRecording, Reading
from nbmem.core.session.events import BlockState, Layout

if TYPE_CHECKING:
    from nbmem.allocator.caching import CachingAllocator
    from nbmem.allocator.recordings.follow import MemoryCurves

_CLOSE = 64
"""Events to each side within which a reading without an event index is searched for."""


class Checks:
    """Comparison of the model with torch's own counters at each reading.

    Attributes:
        peaks: The model's highest values so far, by their names in `recording.PEAKS`.
    """

    def __init__(self, recording: CardRecording, followed: MemoryCurves) -> None:
        self.peaks = dict.fromkeys(PEAKS, 0)
        self._readings: dict[int, list[Reading]] = {}
        for reading in recording.readings:
            at = _place(reading, followed)
            self._readings.setdefault(at, []).append(reading)

    def stops(self) -> dict[int, Callable[[CachingAllocator], None]]:
        """Return the checks of the model by event index.

        Each is to be called before the event with its index.
        """
        return {at: partial(self._check, readings) for at, readings in self._readings.items()}

    def finish(self, allocator: CachingAllocator) -> None:
        """Update the peaks with those since the last reading."""
        for name, value in self._peaks_of(allocator).items():
            self.peaks[name] = max(self.peaks[name], value)

    def _check(self, readings: list[Reading], allocator: CachingAllocator) -> None:
        for reading in readings:
            self.finish(allocator)
            now = self._peaks_of(allocator) | _counters_of(allocator)
            for name, recorded in reading.values.items():
                if now[name] != recorded:
                    raise Divergence(
                        f"counted {recorded} bytes {name} at {reading.label}",
                        f"counts {now[name]}",
                    )
            allocator.reset_peak_stats()

    def _peaks_of(self, allocator: CachingAllocator) -> dict[str, int]:
        statistics = allocator.statistics
        return {
            "peak_allocated": statistics.total.bytes_peak,
            "peak_requested": statistics.total.requested_peak,
            "peak_reserved": statistics.reserved.all.peak,
        }


def _counters_of(allocator: CachingAllocator) -> dict[str, int]:
    return {
        "allocated": allocator.allocated,
        "active": allocator.active,
        "requested": allocator.requested,
        "reserved": allocator.reserved,
        "inactive_split": allocator.statistics.value("split_up", "split_down"),
    }


def _place(reading: Reading, followed: MemoryCurves) -> int:
    """Return the index of a reading among the events.

    A reading with only a time can be some events off: torch converts its clock when the history
    is taken. The right index is the nearest at which every counter has the value that was read.
    """
    at = reading.position
    last = len(followed.allocated) - 1
    if reading.t_ns is None:
        return min(at, last)
    for distance in range(_CLOSE):
        for place in (at - distance, at + distance):
            if 0 <= place <= last and all(
                int(getattr(followed, name)[place]) == reading.values[name]
                for name in COUNTERS
                if name in reading.values
            ):
                return place
    return min(at, last)


def layout_difference(recorded: Layout, model: Layout) -> tuple[str, str] | None:
    """Describe the first difference between two layouts; None if equal.

    The description is two sentence ends, for the recording and for the model.

    Pools of segments are left out: a recording lacks them for segments that were given back.
    """
    ours, theirs = model.segments, recorded.segments
    names = ("addr", "size", "stream", "small", "expandable")
    if (row := _first_row([(getattr(theirs, n), getattr(ours, n)) for n in names])) is not None:
        return f"ends with {_segment(recorded, row)}", f"with {_segment(model, row)}"
    left, right = recorded.blocks, model.blocks
    used = [np.where(b.state == BlockState.INACTIVE, 0, b.requested) for b in (left, right)]
    pairs = [(getattr(left, n), getattr(right, n)) for n in ("addr", "size", "state")]
    if (row := _first_row([*pairs, (used[0], used[1])])) is not None:
        return f"ends with {_block(recorded, row)}", f"with {_block(model, row)}"
    return None


def _first_row(pairs: list[tuple[np.ndarray, np.ndarray]]) -> int | None:
    length = min(len(pairs[0][0]), len(pairs[0][1]))
    differs = np.zeros(length, np.bool_)
    for left, right in pairs:
        differs |= left[:length] != right[:length]
    if differs.any():
        return int(np.argmax(differs))
    return None if len(pairs[0][0]) == len(pairs[0][1]) else length


def _segment(layout: Layout, row: int) -> str:
    if row >= len(layout.segments):
        return "no further segment"
    addr, size = layout.segments.addr[row], layout.segments.size[row]
    return f"a segment of {size} bytes at {addr:#x} (stream {layout.segments.stream[row]})"


def _block(layout: Layout, row: int) -> str:
    if row >= len(layout.blocks):
        return "no further block"
    state = BlockState(int(layout.blocks.state[row])).name.lower()
    addr, size = layout.blocks.addr[row], layout.blocks.size[row]
    return f"a block of {size} bytes at {addr:#x} ({state})"
