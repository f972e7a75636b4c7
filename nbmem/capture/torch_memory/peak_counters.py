"""Measure the peak of a cell beside the user's own peak counter.

torch has one counter of a card's highest allocated bytes, and it is the user's. It shows a cell's
peak only if the cell goes above all that was before. So nbmem resets the counter where a cell
begins, and stands in front of the functions of `torch._C` by which Python reads and resets it.
Whatever was reset is added again to each reading, until the user resets the counter. Every reading
of the user's is the one of a process without nbmem.

Code in C++ that asks the allocator itself sees torch's counter as it is.

https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp (resetPeakStats)
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from operator import methodcaller
from typing import Any

from nbmem.capture.patches.compilations import skip_in_dynamo
from nbmem.capture.torch_cuda import ORIGINAL, device_count, loaded_torch, read_counters
from nbmem.core.runtime.entry_points import entry
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.cell_delta import CellPeak

logger = logging.getLogger("nbmem")

READ, RESET = "_cuda_memoryStats", "_cuda_resetPeakMemoryStats"
READERS = (READ, "_accelerator_getDeviceStats")
RESETTERS = (RESET, "_accelerator_resetPeakStats")
"""Functions of `torch._C` that read and reset the counters: of torch.cuda and torch.accelerator."""
Peaks = dict[tuple[str, ...], int]
"""Peak of each counter, by its names in the nested statistics."""


class PeakView:
    """Functions in place of torch's, by which the user reads its counters.

    Args:
        border: `torch._C`.
        lock: Held while the user resets.
        before_reset: Called with the card's index before the user's reset; must not raise.
        after_reset: Called after it; must not raise.
    """

    def __init__(
        self,
        border: Any,
        lock: threading.RLock,
        before_reset: Callable[[int], None],
        after_reset: Callable[[], None],
    ) -> None:
        self._border, self._lock = border, lock
        self._before_reset, self._after_reset = before_reset, after_reset
        self._earlier: dict[int, Peaks] = {}
        self._stand_ins: dict[str, Any] = {}
        for names, make in ((READERS, self._reader), (RESETTERS, self._resetter)):
            for name in names:
                if hasattr(border, name):
                    self._stand_ins[name] = make(getattr(border, name))

    @property
    def in_place(self) -> bool:
        """True if torch's functions are replaced by these."""
        now = vars(self._border)
        return all(now.get(name) is stand_in for name, stand_in in self._stand_ins.items())

    @property
    def adds(self) -> bool:
        """True if a reading of the user's differs from torch's own."""
        return bool(self._earlier)

    def apply(self) -> None:
        """Replace torch's functions."""
        skip_in_dynamo(*self._stand_ins.values())
        for name, stand_in in self._stand_ins.items():
            setattr(self._border, name, stand_in)

    def revert(self) -> None:
        """Put torch's functions back, unless other code has replaced them."""
        for name, stand_in in self._stand_ins.items():
            if vars(self._border).get(name) is stand_in:
                setattr(self._border, name, getattr(stand_in, ORIGINAL))

    def restart(self, index: int) -> tuple[int, int]:
        """Reset a card's counters, and add what they showed to the view.

        Returns:
            Highest and current allocated bytes just before.
        """
        read, reset = (getattr(self._stand_ins[name], ORIGINAL) for name in (READ, RESET))
        self._add(index, read(index))  # changes no reading, and is there if the rest fails
        # Unpacked from a map, both run in one step of the interpreter: no other thread's Python
        # code, which may allocate, runs in between.
        stats, _ = map(methodcaller("__call__", index), (read, reset))
        allocated = stats["allocated_bytes"]["all"]
        before = allocated["peak"], allocated["current"]
        self._add(index, stats)
        return before

    def _add(self, index: int, stats: dict[str, Any]) -> None:
        """Add the peaks of a card's statistics to the user's view."""
        raise_peaks(stats, self._earlier.get(index, {}))
        self._earlier[index] = peaks_in(stats)

    def _reader(self, original: Any) -> Any:
        @functools.wraps(original)
        def read_statistics(index: int) -> Any:
            found = original(index)  # first: a restart in another thread comes before or behind
            earlier = self._earlier.get(index)
            if earlier is not None:
                raise_peaks(found, earlier)
            return found

        setattr(read_statistics, ORIGINAL, original)
        return read_statistics

    def _resetter(self, original: Any) -> Any:
        @functools.wraps(original)
        def reset_peaks(index: int) -> Any:
            with self._lock:
                self._before_reset(index)
                try:
                    return original(index)
                finally:
                    self._earlier.pop(index, None)
                    self._after_reset()

        setattr(reset_peaks, ORIGINAL, original)
        return reset_peaks


def peaks_in(stats: dict[str, Any], path: tuple[str, ...] = ()) -> Peaks:
    """Return each counter's `peak` in nested statistics.

    Peaks that a reset does not lower are left out.
    """
    found: Peaks = {}
    if stats.get("peak", 0) > stats.get("current", 0):
        found[path] = stats["peak"]
    for name, value in stats.items():
        if isinstance(value, dict):
            found |= peaks_in(value, (*path, name))
    return found


def raise_peaks(stats: dict[str, Any], earlier: Peaks) -> None:
    """Raise peaks in nested statistics to earlier ones, in place."""
    for path, peak in earlier.items():
        counter = stats
        for name in path:
            counter = counter.get(name, {})
        if counter.get("peak", peak) < peak:
            counter["peak"] = peak


class PeakMeter:
    """Highest allocated bytes of each card from its creation to `end`.

    Attributes:
        watched: Whether each reset was seen, of cards that are first used meanwhile as well.
    """

    def __init__(self, *, watched: bool) -> None:
        self.watched = watched
        self._reached: dict[int, int] = {}
        self._floor: dict[int, int] = {}
        self._final: dict[int, CellPeak] | None = None

    def begin_card(self, index: int, allocated: int, floor: int | None = None) -> None:
        """Start with a card's allocated bytes.

        Args:
            index: CUDA ordinal.
            allocated: Its allocated bytes.
            floor: What the peak counter shows, if it could not be reset: only a higher figure is
                this stretch's. None if it was reset.
        """
        self._reached[index] = allocated
        if floor is not None:
            self._floor[index] = floor

    def restart(self, *, watched: bool) -> None:
        """Start anew, with other cards than before."""
        self.watched = watched
        self._reached.clear()
        self._floor.clear()

    def raise_to(self, index: int, peak: int) -> None:
        """Take note of torch's peak counter before it is reset."""
        if peak > self._floor.get(index, -1):
            self._reached[index] = max(self._reached.get(index, 0), peak)

    def read(self, index: int) -> CellPeak | None:
        """Return a card's peak so far; None if torch has no counters of it.

        After `end` it stays what it was then.
        """
        if self._final is not None:
            return self._final.get(index)
        counters = read_counters(index)  # first: a reset raises what was reached before it resets
        if counters is None:
            return None
        known, floor = self._reached.get(index), self._floor.get(index)
        counted = floor is None or counters.peak_allocated > floor
        seen = counters.peak_allocated if counted else counters.allocated
        reached = max(seen, known or 0)
        exact = self.watched or known is not None if floor is None else reached > floor
        return CellPeak(device=index, allocated=reached, exact=exact)

    def end(self) -> CellPeak | None:
        """Stop, and return the highest of the cards' peaks; None without a card."""
        if self._final is None:
            found = [self.read(index) for index in range(device_count())]
            self._final = {peak.device: peak for peak in found if peak is not None}
            _COUNTERS.forget(self)
        return max(self._final.values(), key=lambda peak: peak.allocated, default=None)


class PeakCounters:
    """torch's peak counters in this process, and the meters that share them.

    It is a finder of modules while torch is not imported, to be in place before CUDA is used.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # of all that resets; readings need none
        self._view: PeakView | None = None
        self._meters: list[PeakMeter] = []
        self._leaving = False

    def begin(self) -> PeakMeter:
        """Start a meter; nothing is imported, and no CUDA context is created."""
        with self._lock:
            self._leaving = False
            self.watch()
            meter = PeakMeter(watched=self._view is not None)
            for index in range(device_count()):
                self._begin_card(meter, index)
            self._meters.append(meter)
        return meter

    def watch(self) -> None:
        """Take note of resets from now on.

        Called again after virtual cards have come or gone: torch's functions are others then.
        """
        with self._lock:
            border = getattr(loaded_torch(), "_C", None)
            if border is None:
                if self not in sys.meta_path:
                    sys.meta_path.insert(0, self)
                return
            self._leave_imports()
            if self._view is not None and self._view.in_place:
                return
            self._view = None
            if all(hasattr(border, name) for name in (READ, RESET)):
                self._view = PeakView(border, self._lock, self._before_reset, self._after_reset)
                self._view.apply()
            counters = (read_counters(index) for index in range(device_count()))
            unused = not any(one.peak_allocated for one in counters if one is not None)
            for meter in self._meters:
                meter.restart(watched=unused and self._view is not None)

    def forget(self, meter: PeakMeter) -> None:
        """Drop a meter that has ended."""
        with self._lock:
            self._meters[:] = [one for one in self._meters if one is not meter]

    def leave(self) -> None:
        """Put torch's functions back, at the latest at the user's next reset.

        Until then they show the peak that was reset for a cell.
        """
        with self._lock:
            self._leave_imports()
            self._leaving = True
            self._after_reset()

    def _begin_card(self, meter: PeakMeter, index: int) -> None:
        counters = read_counters(index)
        if counters is None:
            return
        if counters.peak_allocated == counters.allocated:
            meter.begin_card(index, counters.allocated)
            return
        try:
            peak, allocated = self._require_view().restart(index)
        except Exception as err:  # then a peak is exact only above all before
            reraise_if_from_signal(err)
            logger.debug("the peak counter cannot be reset", exc_info=True)
            meter.begin_card(index, counters.allocated, floor=counters.peak_allocated)
            return
        for running in self._meters:
            running.raise_to(index, peak)
        meter.begin_card(index, allocated)

    def _require_view(self) -> PeakView:
        if self._view is None:
            raise LookupError("torch has no function that resets its peak counter")
        return self._view

    @entry("the peak of this cell")
    def _before_reset(self, index: int) -> None:
        counters = read_counters(index)
        for meter in self._meters:
            if counters is not None:
                meter.raise_to(index, counters.peak_allocated)

    @entry("the peak of this cell")
    def _after_reset(self) -> None:
        if self._leaving and self._view is not None and not self._view.adds:
            self._view.revert()
            self._view = None

    def _leave_imports(self) -> None:
        sys.meta_path[:] = [one for one in sys.meta_path if one is not self]

    @entry("the peak of the cell that imports torch")
    def find_spec(self, name: str, *_path_and_target: Any) -> None:
        """Watch resets from the import of torch on, before CUDA can be used.

        Python calls this for each import, as for any finder in `sys.meta_path`. It finds no module
        itself.
        """
        if name.startswith("torch.") and loaded_torch() is not None:
            self.watch()


_COUNTERS = PeakCounters()
begin_measuring = _COUNTERS.begin
watch_resets = _COUNTERS.watch
restore_functions = _COUNTERS.leave
