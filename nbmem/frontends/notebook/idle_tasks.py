"""Finish a heap walk while the kernel is idle after a cell.

A person who waits for the prompt gets the report after a few milliseconds of walking. The rest is
walked when the kernel is idle, in pieces between which it takes requests; then the report is
renewed. The next cell may change the heap. If it comes before the walk is over ("Run All" does),
it waits a moment for the rest, and ends what is left then.

Front ends that execute a notebook unattended (`allow_stdin` is off) get all of it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.clock import CLOCK
from nbmem.frontends.notebook.error_boundary import error_boundary, shell_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.api.tracing import Trace

WAIT_S = 0.01
"""For so long a look keeps a person waiting, where it can go on later."""
TERMINAL_S = 0.015
"""And where it cannot."""
REST_S = 0.05
"""So long the kernel is left alone after a cell: its reply is sent from the same loop, after a
sleep of its own (`Kernel._execute_sleep`), and a piece that came between would hold it up."""
PIECE_S = 0.02
"""So long a piece keeps a request waiting afterwards."""
NEXT_S = 0.3
"""And so long the next cell waits for the rest, at most."""


class IdleHeapWalk:
    """The rest of the last trace's heap walk, run while the kernel is idle.

    Args:
        shell: The shell; where it has no kernel with a loop, there is no later.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel: Any = getattr(shell, "kernel", None)
        self._trace: Trace | None = None
        self._renew: Callable[[], None] | None = None

    def time_limit(self) -> Callable[[float], bool] | None:
        """Return a function that says when a heap walk has to stop, or None.

        It takes the seconds that the next part will need. None means that no person waits: a
        front end that executes a notebook unattended (nbconvert, papermill) answers no input.
        """
        if self._kernel is not None:
            waits = bool(getattr(self._kernel, "_allow_stdin", False))
        else:
            waits = hasattr(self._shell, "mainloop")  # a terminal
        if not waits:
            return None
        if self.can_continue:
            return _until(WAIT_S)
        over = _until(TERMINAL_S)
        return lambda _coming: over(0)  # a long part is taken: it will not be looked at later

    @property
    def can_continue(self) -> bool:
        """True if the kernel has an event loop that calls back when idle."""
        return hasattr(getattr(self._kernel, "io_loop", None), "add_callback")

    def continue_when_idle(self, trace: Trace, renew: Callable[[], None]) -> None:
        """Continue the heap walk when the cell is over.

        Args:
            trace: Its look was left.
            renew: Called when the look is over; the report has more names then.
        """
        self._trace, self._renew = trace, renew
        # A cell of a subshell ends in a thread of its own, and timers are the loop's.
        self._kernel.io_loop.add_callback(self._rest, trace)

    def finish_now(self) -> None:
        """Continue the heap walk now, for as long as the next cell can wait.

        What is left then is dropped. Nothing has run since the traced cell that could have
        changed what is looked at.
        """
        if self._trace is not None and self._trace.resume_walk(_until(NEXT_S)):
            self._show()
        self.stop()

    def stop(self) -> None:
        """Abandon the rest of the walk: the heap is about to change."""
        trace, self._trace, self._renew = self._trace, None, None
        if trace is not None:
            trace.discard_walk()

    @shell_entry("look who holds what")
    def _rest(self, trace: Trace) -> None:
        self._kernel.io_loop.call_later(REST_S, self._piece, trace)

    @shell_entry("look who holds what")
    def _piece(self, trace: Trace) -> None:
        if trace is not self._trace or self._renew is None:
            return  # the next cell has begun, perhaps with a look of its own
        if not trace.resume_walk(_until(PIECE_S)):
            self._kernel.io_loop.add_callback(self._piece, trace)
            return
        self._show()

    def _show(self) -> None:
        renew = self._renew
        self.stop()
        if renew is not None:
            with error_boundary("renew the report"):
                renew()


def _until(seconds: float) -> Callable[[float], bool]:
    end = CLOCK.monotonic() + seconds
    return lambda coming: CLOCK.monotonic() + coming > end
