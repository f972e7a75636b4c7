"""Estimate eager-mode peaks while the compiled plan runs.

The estimate is the peak as it would be if compiled regions took the bytes of eager mode. While a
region runs, its eager bytes replace what it takes. After it, the bytes that eager mode would have
left in addition are added to the live bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.session.events import Action
from nbmem.virtual import warnings
from nbmem.virtual.hardware.eager_references import SavedStorages

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU


class PeakBytes(NamedTuple):
    """The peak of bytes above those that were live before.

    Attributes:
        first: Where the libraries' workspaces were not there yet.
        later: Where they were.
    """

    first: int
    later: int


class PeakTracker:
    """A tracker of a card's peak live bytes since `restart()`.

    It hooks the allocator's events and passes them on.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._allocator = gpu.allocator
        self._original_emit = self._allocator.emit
        self._allocator.emit = self._hear
        self.restart()

    def restart(self) -> int:
        """Restart from the bytes live now, and return them."""
        self._base = self._lives = self._first = self._later = self._allocator.allocated
        self._worked = self._gpu.workspaces.nbytes
        return self._base

    def restart_at_allocation(self) -> None:
        """Restart at the next allocation; some bytes live now are garbage."""
        self.restart()
        self._lives = self._first = self._later = 0

    @property
    def peak_above_start(self) -> PeakBytes:
        """The peak above the bytes live at `restart()`."""
        self._update_peak()
        return PeakBytes(self._first - self._base, self._later - self._base)

    @property
    def peak_total(self) -> int:
        """The peak of all live bytes."""
        return self._base + self.peak_above_start.first

    def _update_peak(self) -> None:
        # Only now: a workspace is known as one when it has been taken.
        self._first = max(self._first, self._lives)
        self._later = max(self._later, self._lives - self._gpu.workspaces.nbytes + self._worked)

    def _hear(self, action: Action, addr: int, size: int, stream: int) -> None:
        if action is Action.ALLOC or action is Action.FREE_COMPLETED:
            self._update_peak()
            if action is Action.ALLOC or self._lives:
                self._lives = self._allocator.allocated
        if self._original_emit is not None:
            self._original_emit(action, addr, size, stream)


class EagerEstimate:
    """The bytes of eager mode on one card, in place of a compiled run's.

    Attributes:
        peak: The peak of live bytes since `begin()`, as in eager mode.
        beside: The part of the peak that might have been freed by then.
        lasting: Storages that are saved for backward across regions.
        unknown: The reason why a region's bytes are not known; empty if all are known.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self.peak = self.beside = 0
        self.unknown = ""
        self._gpu = gpu
        self.lasting = SavedStorages()
        self._more = self._unsure = self._lasted = 0
        self._between = PeakTracker(gpu)
        self._ran = self._apart = False

    def sentences(self) -> list[str]:
        """Return the report's sentences; empty if no compiled region ran."""
        if self.unknown:
            return [warnings.eagerly_unknown(self.unknown)]
        peak = self.now()
        return [warnings.eager_peak(peak, max(self.beside, self._unsure))] if self._ran else []

    def begin(self) -> None:
        """Reset the peak at the start of a report."""
        self.peak, self._ran = 0, False
        self._go_on()

    def now(self) -> int:
        """Update and return the peak, with what happened since the last region."""
        # What the card has freed in between was part of its peak.
        self._reach(self._between.peak_total + self._lasted)
        self._reach(self._gpu.allocator.allocated + self.lasting.eager_only_bytes)
        return self.peak

    def _reach(self, lives: int) -> None:
        if lives + self._more > self.peak:
            self.peak, self._unsure = lives + self._more, self.lasting.uncertain_bytes

    def _go_on(self) -> None:
        self._lasted = self.lasting.eager_only_bytes
        self._between.restart()

    @contextlib.contextmanager
    def excluding(self) -> Iterator[None]:
        """Exclude the allocations made inside: a compiler's trial runs."""
        if self._apart:
            yield
            return
        self.now()
        self._apart = True
        try:
            yield
        finally:
            self._apart = False
            self._lasted = self.lasting.eager_only_bytes
            self._between.restart_at_allocation()

    def run(
        self, act: Callable[[], Any], most: PeakBytes, kept: int | None = None
    ) -> tuple[Any, int]:
        """Run a compiled region and account for its eager-mode bytes.

        Args:
            act: Runs the region.
            most: The region's peak in eager mode, above the bytes that are live now.
            kept: Bytes that the region would leave in eager mode; None: as many as it leaves.

        Returns:
            What the region returned, and the bytes that eager mode would have left in addition.
        """
        self._ran = True
        self.now()
        before, worked = self._gpu.allocator.allocated, self._gpu.workspaces.nbytes
        lasted = self.lasting.eager_only_bytes
        found = act()
        grown = self._gpu.workspaces.nbytes - worked
        taken = most.first if grown else most.later
        self._reach(before + lasted + taken)
        left = self._gpu.allocator.allocated - before - grown
        added = 0 if kept is None else kept - left
        self._more += added
        self._go_on()
        return found, added

    def forget(self, added: int) -> None:
        """Subtract bytes that a region would have left and that are freed."""
        self._more -= added
