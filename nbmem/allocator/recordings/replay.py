"""Replay a recording in the simulator and report the first difference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbmem.allocator.recordings.compare import Checks, layout_difference
from nbmem.allocator.recordings.follow import MemoryCurves, reconstruct
from nbmem.allocator.recordings.inference import (
    LIKELY_TOTAL,
    emptied_by_user,
    limit_bounds,
    pools_of,
)
from nbmem.allocator.recordings.predict import Assumptions, Difference, Prediction
from nbmem.allocator.recordings.recording import PEAKS, CardRecording, read_card
from nbmem.allocator.recordings.undo_events import undo_with_notes
from nbmem.allocator.rounding import LARGE_STEP
from nbmem.allocator.settings import AllocatorSettings
from nbmem.allocator.torch_rules import NEWEST
from nbmem.core.session.events import Action, Layout
from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.allocator.caching import CachingAllocator
    from nbmem.core.files.size_limits import Limits

TRIED = (NEWEST, "2.11.0", "2.12.0")
"""Releases whose rules are tried when a file does not name one: one for each tie order."""
_MAX_POOL_GUESSES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of replaying a recording in the model.

    Attributes:
        name: The recording.
        release: The release whose rules were used.
        release_known: Whether the recording names it.
        events: How many events there are.
        exact: Whether every address, driver event, counter and the final layout agree.
        first_difference: The first difference; None if all agree.
        peak_allocated: Highest allocated bytes of the model (up to the first difference).
        peak_reserved: Highest reserved bytes of the model (up to the first difference).
        recorded_peak_allocated: The recording's: torch's own counter where it is in the file.
        recorded_peak_reserved: The recording's.
        notes: Notes for the reader, one sentence each.
    """

    name: str
    release: str
    release_known: bool
    events: int
    exact: bool
    first_difference: Difference | None
    peak_allocated: int
    peak_reserved: int
    recorded_peak_allocated: int
    recorded_peak_reserved: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON: bytes, and null without a difference."""
        difference = self.first_difference
        return {
            "name": self.name,
            "release": self.release,
            "release_known": self.release_known,
            "events": self.events,
            "exact": self.exact,
            "first_difference": difference and difference.to_json(),
            "peak_allocated": self.peak_allocated,
            "peak_reserved": self.peak_reserved,
            "recorded_peak_allocated": self.recorded_peak_allocated,
            "recorded_peak_reserved": self.recorded_peak_reserved,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Format the result as text."""
        whose = "as recorded" if self.release_known else "the recording does not name its release"
        lines = [
            f"{self.name}: {self.events} events, rules of torch {self.release} ({whose})",
            "exact: every address, segment and counter is the recorded one"
            if self.first_difference is None
            else f"differs first at event {self.first_difference.event}: the recording "
            f"{self.first_difference.recorded}; the model {self.first_difference.model}",
            _peak("allocated", self.peak_allocated, self.recorded_peak_allocated),
            _peak("reserved", self.peak_reserved, self.recorded_peak_reserved),
            *(f"note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def _peak(name: str, model: int, recorded: int) -> str:
    return f"peak {name}: model {format_bytes(model)}, recorded {format_bytes(recorded)}"


def replay(
    path: str | Path,
    release: str | None = None,
    device: int | None = None,
    limits: Limits | None = None,
) -> ReplayResult:
    """Replay a file's requests and compare the model event by event.

    Args:
        path: A torch snapshot with history, a trace in JSON, or a saved session.
        release: The release of torch that recorded it. None: the file's release. If the file has
            none, several are tried, and the one that agrees longest is reported.
        device: Which card; None: the one that held the most.
        limits: How large the file may be; None for the default.

    Raises:
        UsageError: The file is not there, or has nothing about the card.
        FileFormatError: It cannot be read.
    """
    recording = read_card(path, device, limits)
    named = release or recording.release
    results = []
    for rules in (named,) if named else TRIED:
        results.append(replay_recording(replace(recording, release=rules)))
        if results[-1].exact:
            break
    best = max(results, key=_agreement)
    return replace(best, release_known=named is not None)


def _agreement(result: ReplayResult) -> int:
    difference = result.first_difference
    return result.events + 1 if difference is None else difference.event


def replay_recording(recording: CardRecording) -> ReplayResult:
    """Replay a recording under the rules of its release.

    The rules of the newest release are used if the recording names none.
    """
    release = recording.release or NEWEST
    settings = AllocatorSettings.from_torch(recording.settings, release)
    start, notes = _start(recording, settings)
    followed = reconstruct(start, recording.events, settings)
    runner = _FactSearch(recording, start, settings, release, followed)
    difference = runner.run()
    recorded = _recorded_peaks(recording, followed)
    return ReplayResult(
        name=recording.name,
        release=release,
        release_known=recording.release is not None,
        events=len(recording.events),
        exact=difference is None,
        first_difference=difference,
        peak_allocated=runner.checks.peaks["peak_allocated"],
        peak_reserved=runner.checks.peaks["peak_reserved"],
        recorded_peak_allocated=recorded["peak_allocated"],
        recorded_peak_reserved=recorded["peak_reserved"],
        notes=(*recording.notes, *notes, *runner.notes),
    )


def _start(recording: CardRecording, settings: AllocatorSettings) -> tuple[Layout, tuple[str, ...]]:
    if recording.start is not None:
        return recording.start, ()
    if recording.end is None:
        return Layout.empty(), ()
    return undo_with_notes(recording.end, recording.events, settings)


def _recorded_peaks(recording: CardRecording, followed: MemoryCurves) -> dict[str, int]:
    """Return torch's own peak counters, or else the peaks of the events."""
    peaks = {}
    for name in PEAKS:
        read = [r.values[name] for r in recording.readings if name in r.values]
        curve = getattr(followed, name.removeprefix("peak_"))
        peaks[name] = max(read) if read else int(curve.max())
    return peaks


class _FactSearch:
    """A search for unrecorded facts that explain a difference."""

    def __init__(
        self,
        recording: CardRecording,
        start: Layout,
        settings: AllocatorSettings,
        release: str,
        followed: MemoryCurves,
    ) -> None:
        self.recording = recording
        self.start = start
        self.settings = settings
        self.release = release
        self.followed = followed
        self.notes: list[str] = []
        self.learned = 0
        self.assumptions = Assumptions(
            total_bytes=recording.total_bytes or LIKELY_TOTAL,
            emptied=emptied_by_user(recording),
            pools=pools_of(recording),
        )
        self.checks = Checks(recording, followed)

    def run(self) -> Difference | None:
        """Return the difference that remains, or None."""
        by_limit = self.settings.garbage_collection_threshold > 0
        difference = self._run_with_limit() if by_limit else self._run_with_pools()
        if self.learned:
            self.notes.append(
                f"The order of {self.learned} pairs of equal blocks from before the recording was "
                "learned from it."
            )
        return difference

    def _once(self) -> Difference | None:
        self.checks = Checks(self.recording, self.followed)
        prediction = Prediction(
            self.start, self.recording.events, self.settings, self.release, self.assumptions
        )
        difference = prediction.run(self.checks.stops())
        self.checks.finish(prediction.allocator)
        self.learned = prediction.order.learned
        return difference or self._at_end(prediction.allocator)

    def _at_end(self, allocator: CachingAllocator) -> Difference | None:
        if self.recording.end is None:
            return None
        found = layout_difference(self.recording.end, allocator.layout())
        if found is None:
            return None
        return Difference(event=len(self.recording.events), recorded=found[0], model=found[1])

    def _run_with_pools(self) -> Difference | None:
        """Replay, and try private pools where the recording took a new segment.

        The model would have reused a cached block, so the request may belong to a captured graph's
        pool. The pool of a segment that was released is not recorded. Only streams that have
        private segments at the end are tried.
        """
        end = self.recording.end
        streams = (
            set() if end is None else set(end.segments.stream[end.segments.pool != 0].tolist())
        )
        events = self.recording.events
        difference = self._once()
        for _ in range(_MAX_POOL_GUESSES):
            if difference is None or not difference.new_segment:
                break
            stream = int(events.stream[difference.event])
            if stream not in streams or end is None:
                break
            owned = (end.segments.stream == stream) & (end.segments.pool != 0)
            pools = dict(self.assumptions.pools)
            pools.update(self._inside(difference.event, int(end.segments.pool[owned][0])))
            self.assumptions = replace(self.assumptions, pools=pools)
            difference = self._once()
        return difference

    def _inside(self, index: int, pool: int) -> dict[int, int]:
        """Assign a pool to the allocations in the segment of an event.

        The segment was taken for event `index`; only allocations while it was held count.
        """
        events = self.recording.events
        # The event before is the SEGMENT_ALLOC.
        addr, size = int(events.addr[index]), int(events.size[index - 1])
        later = range(index, len(events))
        found = {}
        for at in later:
            here = addr <= events.addr[at] < addr + size
            if here and events.action[at] == Action.SEGMENT_FREE:
                break
            if here and events.action[at] == Action.ALLOC:
                found[at] = pool
        return found

    def _run_with_limit(self) -> Difference | None:
        """Search for the memory limit that garbage collection depends on.

        The limit is a memory fraction, which is not recorded. If the model releases too much the
        threshold is higher, if too little it is lower.
        """
        threshold = self.settings.garbage_collection_threshold
        least, most = limit_bounds(self.recording, self.followed, self.settings)
        low, high = int(threshold * least) // LARGE_STEP, int(threshold * most) // LARGE_STEP
        best: tuple[int, Difference | None, Assumptions] | None = None
        while low <= high:
            middle = (low + high) // 2
            limit = int((middle + 0.5) * LARGE_STEP / threshold)
            self.assumptions = replace(self.assumptions, limit=max(limit, least))
            difference = self._run_with_pools()
            if difference is None:
                self.notes.append(
                    f"The memory limit is not recorded; {format_bytes(limit)} explains the events."
                )
                return None
            if best is None or difference.event > best[0]:
                best = (difference.event, difference, self.assumptions)
            if difference.after_refusal:
                high = middle - 1
            else:
                low = middle + 1
        return best[1] if best is not None else self._run_with_pools()
