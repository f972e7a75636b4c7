"""One thread's training loop while it is recorded: what runs in it, and how far it has come."""

from __future__ import annotations

import threading
from collections import Counter

from nbmem.capture.record.used_forwards import AskedForwards
from nbmem.capture.record.weight_changes import Weights
from nbmem.capture.tensors.sequence_numbers import next_number
from nbmem.capture.torch_cuda import loaded_torch


class Loop:
    """One thread's training loop, as far as it has come.

    Attributes:
        number: Tells it from others; identifiers of threads are given again when one has ended.
        ident: Its thread's identifier.
        name: Its thread's name.
        phase: What runs now; None between phases.
        step: Passes that are over.
        busy: What the thread is inside of: a forward, the engine, a step. Others keep off its
            tensors while it is.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ident = threading.get_ident()
        self.name = threading.current_thread().name
        self.phase: str | None = None
        self.step = 0
        self.busy: str | None = None
        self.root = 0
        self.graph_from = 0  # mark at which the graph of the next backward began
        self.called_at: int | None = None  # mark of the last module's call, if one was taken
        self.waits_since: int | None = None  # mark of a forward's end that no backward followed
        self.stepped: set[int] = set()
        self.usual = 1  # optimizers of a pass
        self.calls: Counter[str] = Counter()  # what began, by its kind
        self.cleared = 0  # how often gradients went that had been computed
        self.computed = False  # whether there are such
        self.ahead = False  # whether a pass has begun whose optimizer has not stepped yet
        self.weights = Weights()  # as they were when the last backward was over
        self.asked = AskedForwards()  # which forwards a backward has run
        self.inside = False  # whether the pass runs inside its optimizer's step
        self._nodes: int | None = None  # how many nodes of graphs were made until its last turn

    def now(self) -> int:
        """Number of the pass that runs: by optimizers, without them by gradients, else by calls."""
        if self.stepped:
            return self.step + self.ahead
        if self.calls["backward"]:
            return self.cleared
        return max(0, (self.calls["forward"] or self.calls["inference"]) - 1)

    def clears(self) -> None:
        """Gradients go; where no optimizer steps, that ends a pass."""
        self.cleared += self.computed
        self.computed = False

    def steps(self, key: int) -> None:
        """An optimizer steps, or an update by hand (0): its second in a pass begins a new one."""
        if key in self.stepped:
            self.step += 1
            self.usual = len(self.stepped)
            self.stepped.clear()
        self.stepped.add(key)
        self.ahead = False
        self.weights.forget()

    def has_computed(self) -> bool:
        """Whether a graph grew since this was asked last, by what a module or none has done."""
        before, self._nodes = self._nodes, next_number(loaded_torch())
        return before is not None and self._nodes is not None and self._nodes > before

    def is_ahead(self) -> bool:
        """Whether what begins now belongs to the next pass."""
        return len(self.stepped) >= self.usual and not self.inside
