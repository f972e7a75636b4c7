"""Explain what a failed cell leaves on the card, under its traceback."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.exceptions import is_raised, message_of
from nbmem.core.units import MIB

if TYPE_CHECKING:
    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.core.session.holders import HeldStorage
    from nbmem.core.session.oom import Refusal

MAX_ERRORS = 100
"""Out-of-memory errors of one cell that are retained, the latest."""
WORTH_SAYING = MIB
"""An interrupted cell that left less is not mentioned."""


class FailureWatch:
    """A listener for out-of-memory errors in cells.

    A traced cell has them in its report.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._seen: deque[Refusal] = deque(maxlen=MAX_ERRORS)
        self._stop: Callable[[], None] | None = None

    def begin(self) -> None:
        """Start listening before a cell; torch has been imported."""
        from nbmem.capture.hooks import oom_observer

        self.close()  # if an earlier cell's end event never came
        self._stop = oom_observer.listen(self._seen.append, self._shell.user_ns)

    def close(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def explain(self, error: BaseException | None, *, traced: bool, row: CellDelta | None) -> None:
        """Explain a cell that ran out of memory or was interrupted.

        Args:
            error: The exception that ended it, or None.
            traced: Whether its report is shown already.
            row: Its change of the card's memory, if it was read.
        """
        self.close()
        seen = tuple(self._seen)
        self._seen.clear()
        if "torch" not in sys.modules:
            return
        if is_raised(error, KeyboardInterrupt):
            if row is not None and row.allocated_delta >= WORTH_SAYING:
                self._interrupted(error, row)
        elif not traced and (seen or is_out_of_memory(error)):
            self._out_of_memory(error, seen)

    def _out_of_memory(self, error: BaseException | None, seen: tuple[Refusal, ...]) -> None:
        from nbmem.capture import torch_cuda
        from nbmem.capture.frameworks.readings import FrameworkQueries
        from nbmem.capture.hooks.oom_observer import place_of
        from nbmem.core.session.oom import oom_in, read_message
        from nbmem.frontends.notebook.display import show_bundle
        from nbmem.report.analysis.oom import untraced
        from nbmem.views.mime_bundle import oom_bundle

        fatal = oom_in(error)
        stack, layer = place_of(fatal, self._shell.user_ns) if fatal else ((), None)
        message = read_message(message_of(fatal)) if fatal else None
        del error, fatal
        storages = self._storages() if message else ()
        device = seen[-1].device if seen else message and message.device
        chief = untraced(
            seen[-1] if seen else None,
            message,
            stack=stack,
            layer=layer,
            storages=storages,
            caught=message is None,
            shares=FrameworkQueries(lambda _: None).read_in_time(device or 0),
            allocator=torch_cuda.allocator_backend(),
        )
        others = [
            untraced(
                one,
                None,
                stack=(),
                layer=None,
                storages=(),
                caught=True,
                allocator=torch_cuda.allocator_backend(),
            )
            for one in seen[:-1]
        ]
        ooms = [chief, *others]
        show_bundle(oom_bundle(ooms, traced=False))

    def _interrupted(self, error: BaseException, row: CellDelta) -> None:
        from nbmem.capture.hooks.oom_observer import place_of
        from nbmem.frontends.notebook.display import show_bundle, text_bundle
        from nbmem.report.analysis.oom import left_by_traceback
        from nbmem.report.analysis.source_lines import users_line
        from nbmem.views.oom import interrupted

        stack, layer = place_of(error, self._shell.user_ns)
        left = left_by_traceback(self._storages())
        text = interrupted(
            line=users_line(stack), layer=layer, grown=row.allocated_delta, left=left
        )
        show_bundle(text_bundle(text))

    def _storages(self) -> tuple[HeldStorage, ...]:
        """Return every live storage on a card, with its holders."""
        from nbmem.capture.heap import walk

        found = walk(self._shell.user_ns).by_device.values()
        return tuple(held for storages in found for held in storages)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception was caused by an out-of-memory error.

    Or is one itself.
    """
    if error is None:
        return False
    from nbmem.core.session.oom import oom_in

    return oom_in(error) is not None


def cell_error(result: Any) -> BaseException | None:
    """Return the exception that ended a cell, or None.

    ipykernel passes no result where an async cell was interrupted: that is a KeyboardInterrupt.
    """
    if result is None:
        return KeyboardInterrupt("the cell was interrupted")
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    return error
