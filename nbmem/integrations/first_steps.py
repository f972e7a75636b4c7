"""Trace some steps of a framework's training, and log their figures.

A trace that a callback retains has no reference to a model, and a callback refers to its Trainer
weakly: a cycle through the model would hold it on the card.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.runtime.entry_points import fault_note
from nbmem.integrations.scalars import scalars

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace

logger = logging.getLogger("nbmem")

PART = "the trace of the first steps"
"""What a fault in a callback loses, for its note."""


class FirstSteps:
    """The tracing that callbacks of Lightning and transformers share.

    The first two steps show what a training takes: the first step's end allocates the optimizer
    state, so the second has the peak. After the last traced step nothing of nbmem's is left in
    torch, and the rest of the training runs as without it.

    Args:
        steps: How many optimizer steps to trace.
        stacks: Take a Python stack at each allocation (dearer; names the lines).
        prefix: Prefix of the figures' names.

    Attributes:
        trace: The last training's trace, with its report; None before one began.
    """

    def __init__(self, steps: int = 3, *, stacks: bool = False, prefix: str = "nbmem") -> None:
        if steps < 1:
            raise UsageError(f"{steps} steps cannot be traced. Name one or more.")
        self.steps = steps
        self.stacks = stacks
        self.prefix = prefix
        self.trace: Trace | None = None
        self._first = 0
        self._names: dict[str, object] = {}

    def begin(self, model: object, step: int) -> None:
        """Start the trace of a training that begins at a step."""
        from nbmem.api.tracing import Trace

        self.stop()
        self._first = step
        self._names = {"model": model}
        trace = Trace("the first steps", stacks=self.stacks, namespace=self._names)
        self.trace = trace.start()

    def stepped(self, step: int) -> bool:
        """Return whether all traced steps are done at a step."""
        return self.runs and step - self._first >= self.steps

    def stop(self, error: BaseException | None = None) -> bool:
        """Stop the trace; return False if none ran."""
        if self.trace is None or not self.runs:
            return False
        self.trace.stop(error)
        self._names.clear()  # a retained trace must not hold the model
        return True

    @property
    def runs(self) -> bool:
        """True while the trace records."""
        return self.trace is not None and self.trace.runs

    def log_figures(self, log: Callable[[dict[str, int]], Any]) -> None:
        """Log the figures to the framework's logger, or warn that none exist."""
        if self.trace is None:
            return
        try:
            figures = scalars(self.trace, self.prefix)
        except NbmemError as err:
            logger.warning("nbmem: %s", err)
            return
        log(figures)

    def on_fault(self, part: str, err: BaseException) -> None:
        """Warn of what nbmem lost; the training goes on."""
        logger.warning("%s", fault_note(part, err).replace("cell", "training"))


class FirstStepsCallback:
    """A base of callbacks that trace the first steps of a training."""

    _first: FirstSteps

    @property
    def trace(self) -> Trace | None:
        """The trace of the last training, with its report; None before one began."""
        return self._first.trace

    def on_fault(self, part: str, err: BaseException) -> None:
        """Warn of what nbmem lost."""
        self._first.on_fault(part, err)
