"""Run one recording from its start to its session, despite any failure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

from nbmem.capture.interpreter.roots import VALUE
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.entry_points import entry, fault_note
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.interrupts import hold_signals

if TYPE_CHECKING:
    from nbmem.capture.interpreter.last_call import LastCall
    from nbmem.capture.record.recorder import Recorder
    from nbmem.core.session.session import Session

LEFT = (
    "Who holds what was not looked for to the end, since you would have waited; `%nbmem top` does."
)
_running: list[Recording] = []
"""Recordings in progress, outermost first. Only the outermost has a recorder of its own."""


class Recording:
    """A stretch that is recorded, or a block of the recording around it.

    Attributes:
        session: What was recorded; None before `freeze`, and for a recording inside another.
        outer: The recording that contains it, or None.
        faults: Reasons for a missing session, one sentence each.
        interrupted: Whether Ctrl-C came during nbmem's own work, and must be delivered.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.session: Session | None = None
        self.outer: Recording | None = None
        self.faults: list[str] = []
        self.interrupted = False
        self.recorder: Recorder | None = None
        self._error: str | None = None
        self._looking: Iterator[float | None] | None = None
        self._left = False

    def _itself(self, *_arguments: Any) -> Self:
        return self

    @entry("this recording", otherwise=_itself)
    def start(self, make: Callable[[], Recorder]) -> Self:
        """Start the recording; never raise.

        Args:
            make: Creates the recorder, if no recording is running.
        """
        with hold_signals() as held:
            if _running:
                self.outer = _running[0]
                self.recorder = self.outer.recorder
                if self.recorder is not None:
                    self.recorder.begin_block(self.name)
            else:
                self.recorder = make()
                self.recorder.start()
            _running.append(self)
        self.interrupted |= held.came
        return self

    def give_up(self) -> None:
        """End the recording as if it had never begun, without a session."""
        self.close()
        if self.outer is None:
            self.recorder = None
        self.interrupted = False  # it is delivered now, and not again at the end
        if not self.faults:
            self.faults.append("It was interrupted as it began, so nothing was recorded.")

    @property
    def runs(self) -> bool:
        """True if it has begun and not ended."""
        return any(one is self for one in _running)

    def _release(self, error: BaseException | None = None) -> None:
        """Remove whatever was installed, where `close` has failed.

        It is a fallback of `close`; no code here calls it directly.
        """
        if self.outer is None and self.recorder is not None:
            for _, release in reversed(self.recorder.to_release):
                with contextlib.suppress(BaseException):
                    release()
            self.recorder.to_release.clear()
            self._error = None if error is None else type(error).__name__
        _running[:] = [one for one in _running if one is not self and one.outer is not self]

    @entry("the end of the recording", otherwise=_release, ends=True)
    def close(self, error: BaseException | None = None) -> None:
        """End the recording and remove all hooks of nbmem from torch.

        It never raises.

        Args:
            error: The exception that ended the run. Its text is retained, and its functions' names
                for modules.
        """
        while self.runs:
            last = _running[-1]  # an inner recording that was never stopped ends here as well
            if last.recorder is not None and last.outer is not None:
                last.recorder.end_block()
            elif last.recorder is not None:
                last.recorder.ended_by(error)
                last.recorder.close()
                last._error = _text_of(error)  # noqa: SLF001 - this class's own
            _running.pop()

    def record_before_return(self, call: LastCall) -> None:
        """Record what a function's variables hold, then free them.

        An interrupt passes: it is meant for the user's code, which goes on behind the call.

        Args:
            call: The call of the function, which has returned or failed. Its frame is taken.
        """
        recorder = self.outermost_recorder()
        if recorder is not None:
            recorder.record_before_return(call)
        call.frame = None

    def outermost_recorder(self) -> Recorder | None:
        """Return the recorder while this recording runs on its own."""
        return self.recorder if self.runs and self.outer is None else None

    @entry("who holds what")
    def record_names_and_holders(self, enough: Callable[[float], bool] | None = None) -> bool:
        """Record the notebook's names and the holders of memory, after `close`.

        It never raises. No code that uses tensors may run before it has ended or was abandoned.

        Args:
            enough: Called after each piece of some milliseconds, with the seconds of the next piece
                if that will be long, else 0. If it returns True the walk stops, and another call
                can continue it. None continues to the end.

        Returns:
            True if it has ended.
        """
        if self.recorder is None or self.outer is not None:
            return True
        self.interrupted |= self.recorder.interrupted
        if self.interrupted:
            return True
        if self._looking is None:
            self._looking = self.recorder.record_names_and_holders()
        self._left = True
        with hold_signals() as held:
            for coming in self._looking:
                if held.waiting:
                    self.interrupted |= held.came
                    return True
                if enough is not None and enough(coming or 0.0):
                    return False
        self._left = False
        return True

    @entry("the session")
    def freeze(self) -> None:
        """Make a session of what has been recorded until now, after `close`.

        It never raises.
        """
        if self.recorder is not None and self.outer is None and not self.runs:
            left = [LEFT] if self._left else []
            self.session = self.recorder.freeze(self.name, self._error, left)
            self.interrupted |= self.recorder.interrupted

    def forget(self) -> None:
        """Release all but the session, once no further walk is wanted."""
        if self._looking is not None:
            self._looking.close()  # type: ignore[attr-defined]
        self._looking = None
        if not self.runs and self.recorder is not None:
            self.recorder.names = {}  # the collector may run late
            self.recorder.storage_log.end()
            self.recorder = None

    def take_interrupt(self) -> None:
        """Remember that Ctrl-C came.

        The caller delivers it at the end.
        """
        self.interrupted = True

    def on_fault(self, part: str, err: BaseException) -> None:
        """Store a sentence on a fault of nbmem's own."""
        self.faults.append(fault_note(part, err))


def add_cell_value(value: object) -> None:
    """Add a traced statement's value to the notebook's names.

    No variable holds it yet.
    """
    recorder = _running[0].recorder if _running else None
    if recorder is not None and value is not None:
        recorder.names = {**recorder.names, VALUE: value}


def running() -> Recording | None:
    """Return the outermost recording that runs now, or None."""
    return _running[0] if _running else None


def _text_of(error: BaseException | None) -> str | None:
    """Return an exception as text, whatever its `__str__` does.

    It may even exit; then nbmem's own description of the error is returned.
    """
    from nbmem.core.session.oom import error_text

    try:
        return error_text(error)
    except BaseException:  # noqa: BLE001 - the user's `__str__`, which may even exit
        return None if error is None else error_of(error)


def users_time(*, begins: bool) -> None:
    """Register when the code that is recorded begins or ends.

    It is for callers in nbmem that do more work at that end. Inside another recording the call has
    no effect, because the outer recording's time is used.
    """
    if len(_running) == 1 and (recorder := _running[0].recorder) is not None:
        if begins and recorder.began_ns is not None:
            recorder.began_ns = CLOCK.time_ns()
        elif not begins:
            recorder.ended_ns = recorder.ended_ns or CLOCK.time_ns()
