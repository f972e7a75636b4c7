"""A run followed beside what it does: how high its peak would be if parts of it took other bytes.

While such a part runs, its other bytes stand in the place of what it takes; between two parts, what
the first would have left more is added to what lives.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.session.events import Action
from nbmem.virtual import warnings
from nbmem.virtual.hardware.eager_references import Lasting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbmem.virtual.hardware.gpu import VirtualGPU


class Most(NamedTuple):
    """The most bytes beyond those that lived before.

    Attributes:
        first: Where the libraries' workspaces were not there yet.
        later: Where they were.
    """

    first: int
    later: int


class Highest:
    """The most bytes that have lived on a card since `restart()`, beside what hears its events."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._allocator = gpu.allocator
        self._true_emit = self._allocator.emit
        self._allocator.emit = self._hear
        self.restart()

    def restart(self) -> int:
        """Begin anew; returns the bytes that live now."""
        self._base = self._lives = self._first = self._later = self._allocator.allocated
        self._worked = self._gpu.workspaces.nbytes
        return self._base

    def restart_behind(self) -> None:
        """Begin anew, with the next bytes that are taken: some that live now are garbage."""
        self.restart()
        self._lives = self._first = self._later = 0

    @property
    def most(self) -> Most:
        """Beyond those that lived at `restart()`."""
        self._look()
        return Most(self._first - self._base, self._later - self._base)

    @property
    def highest(self) -> int:
        """All that lived."""
        return self._base + self.most.first

    def _look(self) -> None:
        # Only now: a workspace is known as one when it has been taken.
        self._first = max(self._first, self._lives)
        self._later = max(self._later, self._lives - self._gpu.workspaces.nbytes + self._worked)

    def _hear(self, action: Action, addr: int, size: int, stream: int) -> None:
        if action is Action.ALLOC or action is Action.FREE_COMPLETED:
            self._look()
            if action is Action.ALLOC or self._lives:
                self._lives = self._allocator.allocated
        if self._true_emit is not None:
            self._true_emit(action, addr, size, stream)


class Instead:
    """The other bytes on one card: those of eager mode, in the place of a planned run's.

    Attributes:
        peak: The most bytes that would have lived since `begin()`.
        beside: Bytes of it of which it is not known whether they would still have lived.
        lasting: What lasts from one part to another.
        unknown: Why a region's bytes are not known; empty as long as all are.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self.peak = self.beside = 0
        self.unknown = ""
        self._gpu = gpu
        self.lasting = Lasting()
        self._more = self._unsure = self._lasted = 0
        self._between = Highest(gpu)
        self._ran = self._apart = False

    def sentences(self) -> list[str]:
        """What a report says of it; nothing where no planned region has run."""
        if self.unknown:
            return [warnings.eagerly_unknown(self.unknown)]
        peak = self.now()
        return [warnings.eagerly(peak, max(self.beside, self._unsure))] if self._ran else []

    def begin(self) -> None:
        """Forget the peak: a report begins."""
        self.peak, self._ran = 0, False
        self._go_on()

    def now(self) -> int:
        """The peak up to now, with what happened since the last region."""
        # What has gone from the card meanwhile was part of its highest.
        self._reach(self._between.highest + self._lasted)
        self._reach(self._gpu.allocator.allocated + self.lasting.more)
        return self.peak

    def _reach(self, lives: int) -> None:
        if lives + self._more > self.peak:
            self.peak, self._unsure = lives + self._more, self.lasting.unsure

    def _go_on(self) -> None:
        self._lasted = self.lasting.more
        self._between.restart()

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """What is taken and given back meanwhile would not be taken: a compiler's trials."""
        if self._apart:
            yield
            return
        self.now()
        self._apart = True
        try:
            yield
        finally:
            self._apart = False
            self._lasted = self.lasting.more
            self._between.restart_behind()

    def run(self, act: Callable[[], Any], most: Most, kept: int | None = None) -> tuple[Any, int]:
        """Run a part.

        Args:
            act: What is done.
            most: Bytes that the part would take at the most meanwhile, beyond what lives now.
            kept: Bytes that it would leave; None: as many as it leaves.

        Returns:
            What the part returned, and the bytes that it would have left more.
        """
        self._ran = True
        self.now()
        before, worked = self._gpu.allocator.allocated, self._gpu.workspaces.nbytes
        lasted = self.lasting.more
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
        """What a part would have left more is gone."""
        self._more -= added
