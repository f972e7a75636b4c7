"""State of one thread's training loop during a recording."""

from __future__ import annotations

import threading
from collections import Counter

from nbmem.capture.record.used_forwards import UsedForwards
from nbmem.capture.record.weight_changes import WeightWatch
from nbmem.capture.tensors.sequence_numbers import next_number
from nbmem.capture.torch_cuda import loaded_torch


class TrainingLoop:
    """Progress of one thread's training loop.

    Attributes:
        number: Distinguishes loops; a thread's identifier may be reused once it has ended.
        ident: Its thread's identifier.
        name: Its thread's name.
        phase: The current phase; None between phases.
        step: Number of completed passes.
        busy: What the thread is inside of: a forward, the engine, a step. Other threads do not
            access its tensors meanwhile.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ident = threading.get_ident()
        self.name = threading.current_thread().name
        self.phase: str | None = None
        self.step = 0
        self.busy: str | None = None
        self.root = 0
        self.graph_from = 0  # sample at which the graph of the next backward began
        self.called_at: int | None = None  # sample of the last module's call, if one was taken
        self.waits_since: int | None = None  # sample of a forward's end without a backward
        self.stepped: set[int] = set()
        self.usual = 1  # optimizers of a pass
        self.after_backward = False  # whether its last event ended a backward
        self.calls: Counter[str] = Counter()  # beginnings by kind
        self.cleared = 0  # how often computed gradients were cleared
        self.computed = False  # whether there are computed gradients
        self.ahead = False  # whether a pass has begun without an optimizer step
        self.weights = WeightWatch()  # as they were at the end of the last backward
        self.used_forwards = UsedForwards()  # which forwards a backward has used
        self.inside = False  # whether the pass runs inside its optimizer's step
        self._nodes: int | None = None  # number of graph nodes created until its last event

    def now(self) -> int:
        """Return the number of the current pass.

        Passes are counted by optimizers, otherwise by gradients, otherwise by calls.
        """
        if self.stepped:
            return self.step + self.ahead
        if self.calls["backward"]:
            return self.cleared
        return max(0, (self.calls["forward"] or self.calls["inference"]) - 1)

    def clears(self) -> None:
        """Count a clearing of computed gradients.

        If no optimizer steps, this ends a pass.
        """
        self.cleared += self.computed
        self.computed = False

    def steps(self, key: int) -> None:
        """Count a step of an optimizer, or a manual update under key 0.

        The second step of one optimizer in a pass begins a new pass.
        """
        if key in self.stepped:
            self.step += 1
            self.usual = len(self.stepped)
            self.stepped.clear()
        self.stepped.add(key)
        self.ahead = False
        self.weights.forget()

    def has_computed(self) -> bool:
        """Return True if any graph has grown since the last call.

        Operations outside of modules count as well.
        """
        before, self._nodes = self._nodes, next_number(loaded_torch())
        return before is not None and self._nodes is not None and self._nodes > before

    def is_ahead(self) -> bool:
        """Return True if a phase beginning now belongs to the next pass."""
        return len(self.stepped) >= self.usual and not self.inside
