"""A Lightning callback that traces first steps and logs the ledger.

The figures go to the Trainer's loggers.

The callback works with `lightning.pytorch` and `pytorch_lightning`. Each accepts only callbacks of
its own class, so the base classes are those of the modules that are already imported.

Lightning's own `self.log` is not used for the figures. It makes float32 tensors on the card, so it
rounds and changes the measured memory.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.entry_points import entry
from nbmem.integrations.first_steps import PART, FirstSteps, FirstStepsCallback

if TYPE_CHECKING:
    Callback: Any = object

NAMES = ("lightning.pytorch", "pytorch_lightning")


def _callback_classes() -> tuple[type, ...]:
    """Return the callback class of each Lightning that is imported.

    If neither is imported, of the first that is installed.
    """
    loaded = [sys.modules[name] for name in NAMES if name in sys.modules]
    if not loaded:
        installed = [name for name in NAMES if find_spec(name.partition(".")[0])]
        if not installed:
            raise ImportError("Lightning is not installed: pip install lightning.")
        loaded = [import_module(installed[0])]
    return tuple(module.Callback for module in loaded)


class MemoryCallback(FirstStepsCallback, *_callback_classes()):  # type: ignore[misc]  # which ones, is known when it runs
    """A callback that traces the first steps of a fit.

    Usage: `Trainer(callbacks=[MemoryCallback(steps=3)])`.

    Then the figures of `nbmem.integrations.scalars` are logged once to each of the Trainer's
    loggers, with the step. A training that fails earlier logs its figures up to that point. It
    never stops a training: a fault in it is a warning.

    Args:
        steps: How many optimizer steps to trace.
        stacks: Take a Python stack at each allocation (dearer; names the lines).
        prefix: Prefix of the figures' names.
    """

    def __init__(self, steps: int = 3, *, stacks: bool = False, prefix: str = "nbmem") -> None:
        super().__init__()
        self._first = FirstSteps(steps, stacks=stacks, prefix=prefix)

    @entry(PART)
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the trace."""
        self._first.begin(pl_module, trainer.global_step)

    @entry(PART)
    def on_train_batch_end(self, trainer: Any, *_arguments: Any) -> None:
        """End the trace after the last of the steps."""
        if self._first.stepped(trainer.global_step):
            self._end(trainer)

    @entry(PART)
    def on_train_end(self, trainer: Any, _pl_module: Any) -> None:
        """End the trace with the training."""
        self._end(trainer)

    @entry(PART)
    def on_exception(self, trainer: Any, _pl_module: Any, exception: BaseException) -> None:
        """End the trace with the exception that ended the training."""
        self._end(trainer, exception)

    def _end(self, trainer: Any, error: BaseException | None = None) -> None:
        if self._first.stop(error):
            for logger in trainer.loggers:
                self._first.log_figures(lambda figures: _log(logger, figures, trainer.global_step))  # noqa: B023 - called at once


def _log(logger: Any, figures: dict[str, int], step: int) -> None:
    logger.log_metrics(figures, step=step)
    logger.save()
