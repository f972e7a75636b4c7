"""Log the training hooks' events with as few counter samples as needed.

An event of the history contains no thread. If several threads train simultaneously there are no
phases, and a note is left (training_threads.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbmem.capture.hooks.training_hooks import in_engine
from nbmem.capture.interpreter.busy_threads import alive
from nbmem.capture.record.hook_events import HookEvent, HookEvents, Kind
from nbmem.capture.record.training_loop import TrainingLoop
from nbmem.capture.tensors.tensors import without_torch_function

if TYPE_CHECKING:
    from nbmem.capture.record.counter_samples import CounterLog
    from nbmem.capture.record.program_log import ProgramLog
    from nbmem.capture.record.tensor_labels import TensorLabelLog

MAX_TURNS = 1_000_000
"""Hook events of one recording, 25 MiB. Then the older half is dropped, and a note is left."""
PATIENCE_S = 1
"""How long a thread waits to report an event; then the event is skipped. One takes microseconds."""


class HookEventLog:
    """Logs hook events of all training loops, with a sample per phase change.

    It implements training_hooks.Listener. Each thread has a loop of its own, and reports only its
    own tensors. One thread is handled at a time, so that none starts the engine while another's
    gradients are read. Modules that are called one after another inside one forward cost no sample.

    Args:
        counter_samples: Takes the counter samples.
        tensor_labels: Records weights, gradients, state and inputs.
        program: Counts how modules were called.

    Attributes:
        hook_events: The latest hook events of every thread, in order.
        dropped: Number of hook events dropped before them.
        stepped: Called when an optimizer steps.
        unheard: Hook events that were skipped while another thread was handled for too long.
    """

    def __init__(
        self, counter_samples: CounterLog, tensor_labels: TensorLabelLog, program: ProgramLog
    ) -> None:
        self.hook_events = HookEvents()
        self.dropped = 0
        self.unheard = 0
        self._loops: list[TrainingLoop] = []
        self._this_thread = threading.local()
        self._last: TrainingLoop | None = None
        self._counter_samples = counter_samples
        self._tensor_labels = tensor_labels
        self._program = program
        self.stepped: Callable[[], object] = int
        self._lock = threading.RLock()

    @property
    def phase(self) -> str | None:
        """Current phase of the thread that was active last; None between phases."""
        return None if self._last is None else self._last.phase

    def step_now(self) -> int | None:
        """Return the step of what runs now, or None before the loop.

        In a loop with several optimizers it is a guess until the first pass has ended.
        """
        if not self.hook_events or self._last is None:
            return None
        return self._last.now()

    def names(self) -> dict[int, str]:
        """Return the names of the logged threads, by their loops' numbers."""
        return {loop.number: loop.name for loop in self._loops}

    # --- one at a time

    def own_loop_number(self) -> int:
        """Return the number of this thread's loop, created if necessary.

        The recorder's own thread, which runs the cells, calls this.
        """
        return self._own_or_new().number

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep every thread from beginning to train while the block runs.

        Yields False if that takes too long. A thread that tries to begin waits at most
        `PATIENCE_S`, so the block must be short.
        """
        ours = self._lock.acquire(timeout=PATIENCE_S)
        try:
            yield ours
        finally:
            if ours:
                self._lock.release()

    @contextmanager
    def _handling(self) -> Iterator[TrainingLoop | None]:
        """Yield this thread's loop while no other thread is handled.

        Yields None if that takes too long, or if the event belongs to no loop.
        """
        if not self._lock.acquire(timeout=PATIENCE_S):
            self.unheard += 1
            yield None
            return
        try:
            with without_torch_function(), self._tensor_labels.storage_log.following():
                self._last = loop = self._loop()
                yield loop
        finally:
            self._lock.release()

    def _loop(self) -> TrainingLoop | None:
        if self._counter_samples.full:
            return None
        loop: TrainingLoop | None = getattr(self._this_thread, "loop", None)
        if loop is None and in_engine():
            # An engine thread computes for the thread that waits for it.
            waiting = [loop for loop in self._loops if loop.busy == "backward"]
            return waiting[0] if len(waiting) == 1 else None
        return self._own_or_new()

    def _own_or_new(self) -> TrainingLoop:
        loop: TrainingLoop | None = getattr(self._this_thread, "loop", None)
        if loop is None:
            loop = self._this_thread.loop = TrainingLoop(len(self._loops))
            self._loops.append(loop)
            self._tensor_labels.begin_loop(loop.number)
        return loop

    def update_at_end(self) -> dict[str, bool]:
        """Return what is known of an update by hand since the last backward.

        The weights are those of this thread's loop. The names are those of HookEvent.
        """
        loop: TrainingLoop | None = getattr(self._this_thread, "loop", None)
        if loop is None:
            return {"unchanged": False, "updated": False}
        return {"unchanged": loop.weights.unchanged(), "updated": loop.weights.changed()}

    def unused_forwards(self, *, failed: bool) -> set[int]:
        """Return the counter samples of forwards that no backward has used.

        Args:
            failed: Whether an error ended the run. That may explain a missing backward, so such a
                forward is omitted.
        """
        logs = [loop.used_forwards for loop in self._loops]
        return set().union(
            *(one.never for one in logs), *(one.waiting(failed=failed) for one in logs)
        )

    def _updated(self, loop: TrainingLoop) -> bool:
        """Return True if weights were updated by hand, and count it as a step."""
        if loop.busy == "backward" or not loop.weights.changed():
            return False
        loop.steps(0)
        return True

    def _record(self, loop: TrainingLoop, kind: Kind, *, begins: bool, **more: Any) -> int:
        sample = self._counter_samples.take()
        loop.calls[kind] += begins
        more["computed"] = loop.has_computed()
        more["unchanged"] = begins and loop.after_backward and loop.weights.unchanged()
        loop.after_backward = kind == "backward" and not begins
        self.hook_events.append(HookEvent(kind, begins, sample, thread=loop.number, **more))
        if len(self.hook_events) >= MAX_TURNS:
            self.dropped += MAX_TURNS // 2
            self.hook_events.drop(MAX_TURNS // 2)
        return sample

    def since(self, count: int) -> tuple[list[HookEvent], int]:
        """Return the hook events after the first `count`, and the total number.

        Dropped ones are missing from the list, but are counted.
        """
        return self.hook_events.part(max(0, count - self.dropped)), self.dropped + len(
            self.hook_events
        )

    @property
    def count(self) -> int:
        """Number of all hook events, dropped ones included."""
        return self.dropped + len(self.hook_events)

    def last_open_forward(self) -> int | None:
        """Return the sample at the end of a forward that no backward followed.

        It is this thread's last one; None if there is none.
        """
        loop: TrainingLoop | None = getattr(self._this_thread, "loop", None)
        return None if loop is None else loop.waits_since

    def _others(self, loop: TrainingLoop) -> dict[int, bool]:
        """Return the other loops whose threads live, and whether each is busy."""
        if len(self._loops) == 1:
            return {}
        living = alive()
        return {
            other.number: other.busy is not None
            for other in self._loops
            if other is not loop and other.ident in living
        }

    def others_in_backward(self) -> bool:
        """Return whether an engine may be freeing memory for another thread.

        It does so without Python. False in a node of the engine itself.
        """
        this_thread = threading.get_ident()
        waiting = any(loop.busy == "backward" and loop.ident != this_thread for loop in self._loops)
        return waiting and not in_engine()

    # --- called by the hooks

    def in_forward(self) -> bool:
        """Return True if this thread is in a forward without a backward so far."""
        loop: TrainingLoop | None = getattr(self._this_thread, "loop", None)
        return loop is not None and loop.phase == "forward"

    def forward_begins(
        self, module: Any, *, grad: bool, in_backward: bool, caches: Sequence[Any] = ()
    ) -> None:
        """Register a module's call.

        A phase begins, unless one of its kind is running.
        """
        with self._handling() as loop:
            if loop is None:
                return
            if in_backward:
                self._record(loop, "recompute", begins=True)
                return
            loop.busy, loop.called_at, updated = "forward", None, self._updated(loop)
            kind: Kind = "forward" if grad else "inference"
            if self._tensor_labels.storage_log.is_over():
                loop.phase = None  # a forward on the host, to which this does not belong
            if loop.phase == "forward" and (not grad or id(module) != loop.root):
                return  # a part of the running forward: a criterion, a second network, a teacher
            if loop.phase == kind and id(module) != loop.root:
                return
            loop.root, loop.phase, loop.ahead = id(module), kind, loop.is_ahead()
            sample = self._record(loop, kind, begins=True, key=loop.root, updated=updated)
            loop.graph_from = loop.called_at = sample
            if grad:
                loop.used_forwards.begins(sample, loop.root)
            self._tensor_labels.begins(sample, module, loop)
            self._tensor_labels.caches(sample, caches)

    def forward_ends(
        self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, in_backward: bool
    ) -> None:
        """Register a module's return, and record its inputs and weights."""
        with self._handling() as loop:
            if loop is None:
                return
            if in_backward:
                self._record(loop, "recompute", begins=False)
                return
            loop.busy = None
            kind: Kind = "inference" if loop.phase == "inference" else "forward"
            sample = self._record(loop, kind, begins=False, key=id(module))
            loop.waits_since = sample if kind == "forward" else loop.waits_since
            self._tensor_labels.called(sample, module, args, kwargs, loop)
            self._program.called(module, args, kwargs)

    def backward_begins(self, outputs: Sequence[Any]) -> None:
        """Register a backward that begins, and record what its graph has saved."""
        with self._handling() as loop:
            if loop is None:
                return
            updated = self._updated(loop)
            loop.phase = loop.busy = "backward"
            loop.ahead, loop.waits_since = loop.is_ahead(), None
            sample = self._record(loop, "backward", begins=True, updated=updated)
            loop.used_forwards.backward(outputs)
            forward = (loop.root, *self._counter_samples.growth(loop.graph_from, sample))
            self._tensor_labels.saved(sample, outputs, forward)

    def backward_ends(self) -> None:
        """Register the end of a backward, and record the gradients."""
        with self._handling() as loop:
            if loop is None:
                return
            loop.phase, loop.busy = "optimizer" if loop.inside else None, None
            loop.graph_from = self._record(loop, "backward", begins=False)
            parameters = self._tensor_labels.gradients(
                loop.graph_from, loop.number, self._others(loop)
            )
            loop.weights.record_versions(parameters)
            loop.computed = True

    def optimizer_begins(self, optimizer: Any, *, closure: bool) -> None:
        """Register an optimizer's step that begins."""
        with self._handling() as loop:
            if loop is None:
                return
            if loop.busy == "backward":  # a hook of the engine's: its state is read at the end
                self._record(loop, "optimizer", begins=True, key=id(optimizer))
                return
            loop.phase = "optimizer"
            loop.busy = None if closure else "optimizer"
            by_hand = loop.weights.given()
            loop.steps(id(optimizer))
            loop.inside = closure
            self._tensor_labels.track_optimizer(optimizer, loop.number)
            self.stepped()
            sample = self._record(
                loop, "optimizer", begins=True, key=id(optimizer), closure=closure
            )
            if by_hand:
                self._tensor_labels.gradients(sample, loop.number, self._others(loop))

    def optimizer_ends(self, optimizer: Any) -> None:
        """Register the end of an optimizer's step, and record its state."""
        with self._handling() as loop:
            if loop is None:
                return
            if loop.busy == "backward":
                self._record(loop, "optimizer", begins=False, key=id(optimizer))
                return
            loop.phase, loop.busy, loop.inside = None, None, False
            sample = self._record(loop, "optimizer", begins=False, key=id(optimizer))
            self._tensor_labels.state(sample, optimizer)

    def zero_grad_begins(self, owner: Any) -> None:
        """Register the beginning of a zero_grad().

        The owner is the optimizer or module whose parameters' gradients are cleared.
        """
        with self._handling() as loop:
            if loop is not None:
                updated = self._updated(loop)
                loop.clears()
                loop.phase = loop.phase if loop.busy == "backward" else "zero_grad"
                self._record(loop, "zero_grad", begins=True, updated=updated)
                self._tensor_labels.storage_log.add_parameters_of(owner)

    def zero_grad_ends(self) -> None:
        """Register the end of a zero_grad(): gradients are gone or zero."""
        with self._handling() as loop:
            if loop is not None:
                loop.phase = loop.phase if loop.busy == "backward" else None
                self._record(loop, "zero_grad", begins=False)
