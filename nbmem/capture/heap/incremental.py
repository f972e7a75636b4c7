"""Do long work in short pieces, between which other code may run.

Nothing stays disabled between two pieces.

Between pieces the caller may run other code, including the user's (a front end's event loop does).
So the garbage collector and torch's functions of subclasses are disabled only inside a piece.
However the work ends, even by an interrupt, no frame remains that holds the work's objects.

- An object is held once its id is recorded.
- A dictionary's key is named only where the key was found.
- A cycle is judged at once.
- Nothing counts as unseen: it may have been moved to an object that the walk had visited.
- An exception's frames are cleared, because they hold half the heap.
- Classes are distinguished by `id()`, because a metaclass may have an `__eq__`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any

from nbmem.capture.interpreter.busy_threads import threads_using_tensors
from nbmem.core.runtime.garbage_collector import without_collector

PIECE_S = 0.006
"""A piece ends with the first step beyond this many seconds of this thread's time. A step is a call
into C on at most a thousand objects, or on one of any size."""
_OURS = ("nbmem.capture.heap.", "nbmem.capture.interpreter.", "nbmem.capture.tensors.")


class IncrementalWork:
    """Work that can be stopped after each of its pieces.

    Args:
        torch: The user's torch.
        steps: The work, as short steps. Before a long step it yields about how many seconds that
            will take.
        budget_s: Limit of this thread's own CPU time in seconds; None for no limit.
        go_on: Called after each piece; False stops the work. None continues to the end.

    Attributes:
        ended: Whether the work was completed.
        hindered: Names of the threads that ended it, because they may be using tensors.
    """

    def __init__(
        self,
        torch: Any,
        steps: Generator[float | None],
        budget_s: float | None = None,
        go_on: Callable[[], bool] | None = None,
    ) -> None:
        self.ended = False
        self.hindered: list[str] = []
        self._torch = torch
        self._steps = steps
        self._left = float("inf") if budget_s is None else budget_s
        self._go_on = go_on
        self._coming = 0.0

    def run(self) -> None:
        """Do all of the work, or as much as the budget and the caller allow."""
        without_collector(self._until_ended)  # a collection here would be the walk's own

    def _until_ended(self) -> None:
        try:
            while self._piece() and self._left > 0 and (self._go_on is None or self._go_on()):
                pass
        finally:
            self._steps.close()

    def one_by_one(self) -> Generator[float]:
        """Do one piece before each yield of the seconds of a long step to come."""
        try:
            while self._piece() and self._left > 0:
                yield self._coming
        finally:
            self._steps.close()

    def _piece(self) -> bool:
        """Do one piece; return False if it was the last.

        No piece runs while another thread may be using tensors. Autograd writes gradients and
        graphs without the interpreter's lock, so a concurrent read can access freed memory.
        """
        self.hindered = threads_using_tensors()
        if self.hindered:
            return False
        try:
            # A walk creates some million short-lived objects.
            without_collector(self._until_piece_ended)
        except BaseException as error:
            clear_walk_frames(error)
            raise
        return not self.ended

    def _until_piece_ended(self) -> None:
        with self._torch._C.DisableTorchFunction():  # noqa: SLF001 - for subclasses and modes
            self._until(time.thread_time(), min(PIECE_S, self._left))

    def _until(self, begun: float, seconds: float) -> None:
        wall = time.perf_counter()
        for coming in self._steps:
            self._coming = coming or 0.0
            # This clock is no system call, and a thread's own time is not more than it shows.
            if time.perf_counter() - wall + self._coming <= seconds:
                continue
            spent = time.thread_time() - begun
            if spent + self._coming > seconds:
                self._left -= spent
                return
            wall = time.perf_counter() - spent
        self.ended = True


def clear_walk_frames(error: BaseException) -> None:
    """Clear the walk's own frames in an exception's traceback.

    They hold half the heap.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        traceback = at.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if str(frame.f_globals.get("__name__")).startswith(_OURS):
                with contextlib.suppress(RuntimeError):  # it is still running: one of the callers'
                    frame.clear()
            traceback = traceback.tb_next
        at = at.__context__
