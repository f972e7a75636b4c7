"""A Trainer callback that traces first steps and logs the ledger.

The Trainer is that of transformers.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from transformers import TrainerCallback

from nbmem.core.runtime.entry_points import entry
from nbmem.integrations.first_steps import PART, FirstSteps, FirstStepsCallback


class MemoryCallback(FirstStepsCallback, TrainerCallback):  # type: ignore[misc]  # untyped
    """A callback that traces the first steps of a training.

    Usage: `trainer.add_callback(MemoryCallback(trainer))`.

    Then the figures of `nbmem.integrations.scalars` are logged once, by `Trainer.log`: they go to
    the targets of `report_to` and into `trainer.state.log_history`. It never stops a training: a
    fault in it is a warning.

    Args:
        trainer: The Trainer, which callbacks do not receive; the reference is weak. None, as in
            `Trainer(callbacks=[MemoryCallback()])`, logs the figures to `log_history` alone.
        steps: How many optimizer steps to trace.
        stacks: Take a Python stack at each allocation (dearer; names the lines).
        prefix: Prefix of the figures' names.
    """

    def __init__(
        self,
        trainer: Any = None,
        steps: int = 3,
        *,
        stacks: bool = False,
        prefix: str = "nbmem",
    ) -> None:
        self._trainer = None if trainer is None else weakref.ref(trainer)
        self._first = FirstSteps(steps, stacks=stacks, prefix=prefix)

    @entry(PART)
    def on_train_begin(
        self, _args: Any, state: Any, _control: Any, model: Any = None, **_more: Any
    ) -> None:
        """Start the trace."""
        self._first.begin(model, state.global_step)
        self._end_with_cell()

    @entry(PART)
    def on_step_end(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """End the trace after the last of the steps."""
        if self._first.stepped(state.global_step):
            self._end(state)

    @entry(PART)
    def on_train_end(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """End the trace with the training."""
        self._end(state)

    def _end(self, state: Any) -> None:
        if not self._first.stop():
            return
        trainer = None if self._trainer is None else self._trainer()
        if trainer is not None:
            self._first.log_figures(trainer.log)
        else:
            step = {"step": state.global_step}
            self._first.log_figures(lambda figures: state.log_history.append({**figures, **step}))

    def _end_with_cell(self) -> None:
        """In a notebook, end the trace with the cell that started it.

        A training that raises does not notify its callbacks.
        """
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is None:
            return

        @entry(PART, on_fault=self.on_fault)
        def ended(*_result: Any) -> None:
            shell.events.unregister("post_run_cell", ended)
            self._first.stop()

        shell.events.register("post_run_cell", ended)
