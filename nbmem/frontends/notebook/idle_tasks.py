"""Finish a heap walk while the kernel is idle after a cell.

After a few milliseconds of walking, the report is shown with what was found. The rest of the walk
runs when the kernel is idle, in pieces between which it handles requests. Then the report is
renewed. The next cell may change the heap. If it starts before the walk is over ("Run All"), it
waits briefly, and then drops the rest.

For front ends that run a notebook unattended (`allow_stdin` is off) the walk runs at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.clock import CLOCK
from nbmem.frontends.notebook.error_boundary import error_boundary, shell_entry

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace

WAIT_S = 0.01
"""Length of a walk that delays the prompt, if it can be continued later."""
TERMINAL_S = 0.015
"""Length of a walk that delays the prompt, if it cannot be continued later."""
FAILED_S = 0.5
"""Length of a walk behind an out-of-memory error. The program has ended, and the advice needs the
names of its models and optimizers."""
REST_S = 0.05
"""Delay of the walk after a cell. Its reply is sent from this event loop, after a sleep
(`Kernel._execute_sleep`), and a piece in between would delay it."""
PIECE_S = 0.02
"""Longest time for which a later piece delays a request."""
NEXT_S = 0.3
"""Longest time for which the next cell waits for the rest."""


class IdleHeapWalk:
    """The rest of the last trace's heap walk, run while the kernel is idle.

    Args:
        shell: The shell; without a kernel with an event loop, a walk cannot be continued.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel: Any = getattr(shell, "kernel", None)
        self._trace: Trace | None = None
        self._renew: Callable[[], None] | None = None

    def time_limit(self, *, out_of_memory: bool = False) -> Callable[[float], bool] | None:
        """Return a function that says when a heap walk has to stop, or None.

        It takes the seconds that the next part will need. None means that there is no user to wait:
        a front end that runs a notebook unattended (nbconvert, papermill) has no input.

        Args:
            out_of_memory: Whether an out-of-memory error ended the cell.
        """
        if self._kernel is not None:
            waits = bool(getattr(self._kernel, "_allow_stdin", False))
        else:
            waits = hasattr(self._shell, "mainloop")  # a terminal
        if not waits:
            return None
        if self.can_continue:
            return _until(FAILED_S if out_of_memory else WAIT_S)
        over = _until(FAILED_S if out_of_memory else TERMINAL_S)
        return lambda _coming: over(0)  # start a long part, too: it cannot run later

    @property
    def can_continue(self) -> bool:
        """True if the kernel has an event loop that calls back when idle."""
        return hasattr(getattr(self._kernel, "io_loop", None), "add_callback")

    def continue_when_idle(self, trace: Trace, renew: Callable[[], None]) -> None:
        """Continue the heap walk when the cell is over.

        Args:
            trace: The trace whose walk is not complete.
            renew: Called when the walk is complete; the report then has more names.
        """
        self._trace, self._renew = trace, renew
        # A subshell's cell ends in its own thread; timers must be set in the loop's thread.
        self._kernel.io_loop.add_callback(self._rest, trace)

    def finish_now(self) -> None:
        """Continue the heap walk now, for as long as the next cell can wait.

        What is left then is dropped. No code has run since the traced cell that could have changed
        the heap.
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
            return  # the next cell has begun, perhaps with its own walk
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
