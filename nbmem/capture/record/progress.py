"""Report a traced loop's progress and known bytes to another thread.

That thread reads no tensor, because autograd writes gradients without the interpreter's lock. The
training hooks observe storages in the user's own thread, and their last observations are summed
here. So each figure is from the last change of phase. There is none before a loop's first forward
has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.session.categories import OF_TRAINING, Category

if TYPE_CHECKING:
    from nbmem.capture.record.counter_samples import CounterLog
    from nbmem.capture.record.hook_event_log import HookEventLog
    from nbmem.capture.record.tensor_labels import TensorLabelLog
    from nbmem.capture.record.tracked_objects import OptimizerParameter, TrackedObject

Storages = dict[tuple[int, int], int]
"""(card, address) -> bytes; a device without a history has a negative index, as in the registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopProgress:
    """Progress of a training loop at one moment.

    Attributes:
        phase: The phase of the thread that was active last; None between phases.
        step: Step of what runs; None before the loop. In a loop with several optimizers it is a
            guess until the first pass has ended.
        known: Bytes by (CUDA ordinal, category of OF_TRAINING), as they were observed last.
        freed: Bytes of the known gradients that zero_grad() has freed since, by CUDA ordinal.
    """

    phase: str | None
    step: int | None
    known: Mapping[tuple[int, Category], int]
    freed: Mapping[int, int]


class ProgressLog:
    """Sums what one recorder's logs have observed so far.

    The logs only grow, and each entry is complete once added, so another thread may read them.
    """

    def __init__(
        self, hook_events: HookEventLog, tensor_labels: TensorLabelLog, counter_samples: CounterLog
    ) -> None:
        self._hook_events = hook_events
        self._tensor_labels = tensor_labels
        self._counter_samples = counter_samples
        self._lock = threading.Lock()
        self._owned: dict[
            tuple[TrackedObject | OptimizerParameter, Category], tuple[int, Storages]
        ] = {}
        self._gradients: tuple[int, Storages] = (-1, {})
        self._freed: dict[int, int] = {}
        self._batches = self._events_read = 0
        self._zeroing: int | None = None

    def now(self) -> LoopProgress:
        """Process what was observed since the last call, and return the sums."""
        phase, step = self._hook_events.phase, self._hook_events.step_now()
        with self._lock:
            self._follow_owned()
            self._follow_gradients()
            return LoopProgress(phase=phase, step=step, known=self._sums(), freed=dict(self._freed))

    def _follow_owned(self) -> None:
        batches = self._tensor_labels.rows.batches[self._batches :]
        self._batches += len(batches)
        for sample, found, owner in batches:
            if owner is not None:
                for seen in found:
                    self._see(sample, (owner, seen.category), (seen.device, seen.addr), seen.size)

    def _see(
        self,
        sample: int,
        key: tuple[TrackedObject | OptimizerParameter, Category],
        place: tuple[int, int],
        size: int,
    ) -> None:
        """Add a storage to the latest walk of a module or optimizer.

        A later walk replaces an earlier one of the same owner and category.
        """
        walk = self._owned.get(key)
        if walk is None or walk[0] != sample:
            walk = self._owned[key] = (sample, {})
        walk[1][place] = size

    def _follow_gradients(self) -> None:
        """Update the last backward's gradients, and what zero_grad() has freed."""
        sample, found, _ = self._tensor_labels.gradient_log.last
        if found and sample != self._gradients[0]:
            self._gradients = sample, {(s.device, s.addr): s.size for s in found}
            self._freed.clear()
        hook_events, self._events_read = self._hook_events.since(self._events_read)
        for hook_event in hook_events:
            if hook_event.kind != "zero_grad":
                continue
            if hook_event.begins:
                self._zeroing = hook_event.sample
            elif self._zeroing is not None and hook_event.sample > self._gradients[0]:
                self._forget_uncounted()
                for device, size in self._counter_samples.requested_between(
                    self._zeroing, hook_event.sample
                ).items():
                    self._freed[device] = self._freed.get(device, 0) + max(0, -size)

    def _forget_uncounted(self) -> None:
        """Drop gradients on devices without counters.

        How much of them remains after zero_grad() is unknown.
        """
        sample, storages = self._gradients
        self._gradients = sample, {place: n for place, n in storages.items() if place[0] >= 0}

    def _sums(self) -> dict[tuple[int, Category], int]:
        gone = [key for key in self._owned if key[0].ref() is None]
        for walk in gone:
            del self._owned[walk]
        storages: dict[Category, Storages] = {c: {} for c in OF_TRAINING}
        for (_, category), (_, seen) in self._owned.items():
            if category in storages:
                storages[category].update(seen)
        storages[Category.GRADIENTS].update(self._gradients[1])
        claimed: set[tuple[int, int]] = set()
        sums: dict[tuple[int, Category], int] = {}
        for category, seen in storages.items():
            for place in seen.keys() - claimed:
                card = (place[0], category)
                sums[card] = sums.get(card, 0) + seen[place]
            claimed |= seen.keys()
        return sums
