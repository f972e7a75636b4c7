"""Python API: trace a block, name a phase, open a saved session."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.runtime.entry_points import entry
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.garbage_collector import without_collector
from nbmem.core.runtime.interrupts import hold_signals
from nbmem.core.session.cell_delta import CellDelta, CellPeak
from nbmem.core.session.engines import RULES, TORCH

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from nbmem.capture.hooks.function_calls import FunctionCalls
    from nbmem.capture.interpreter.last_call import LastCall
    from nbmem.capture.record.recorder import BlockUseReader, BlockUseRows, Recorder
    from nbmem.capture.record.recording import Recording
    from nbmem.core.session.session import Session
    from nbmem.report.model import CardFit, Finding, Report
    from nbmem.views.widget.explorer import ExplorerWidget
    from nbmem.virtual.hardware.gpu import VirtualGPU


class Trace:
    """A recording of one stretch of a run, and its report.

    Use it as a context manager (`with nbmem.trace("train") as t: ...`), or call `start` and `stop`.
    Nothing in it raises into the traced code. A trace inside a trace becomes a block of the outer
    one.

    Attributes:
        cells: The notebook's history before this recording, oldest first.
        cell: The line in that history of the cell that was recorded; None outside of a notebook.
    """

    def __init__(
        self,
        name: str = "trace",
        *,
        stacks: bool = False,
        device: int | None = None,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.cells: tuple[CellDelta, ...] = ()
        self.cell: CellDelta | None = None
        self._has_reports_peak = False
        self._options: dict[str, Any] = {"stacks": stacks, "device": device}
        self._namespace = namespace
        self._opened: Session | None = None
        self._recording: Recording | None = None
        self._reports: dict[int | None, Report] = {}

    @property
    def session(self) -> Session | None:
        """The recorded session.

        None before the end, and for a trace inside another.
        """
        return self._opened if self._recording is None else self._recording.session

    @session.setter
    def session(self, session: Session) -> None:
        """Set a session that another trace or file recorded."""
        self._opened, self._recording = session, None

    def _never_begun(self) -> Self:
        if self._recording is not None:
            self._recording.give_up()
        return self

    @entry("this recording", otherwise=_never_begun, ends=True)
    def start(self) -> Self:
        """Start recording; a second call while it records does nothing.

        If nbmem fails or is interrupted, it records nothing and leaves no hooks behind. `report`
        gives the reason.
        """
        from nbmem.capture.record.recording import Recording

        if not self.runs:
            self._reports.clear()
            self._recording = Recording(self.name)
            self._recording.start(self._new_recorder)
            if self._recording.interrupted:
                raise KeyboardInterrupt  # which `entry` delivers
        return self

    def _close_without_walk(self, error: BaseException | None = None) -> Self:
        if self._recording is not None:
            self._recording.close(error)
            self._recording.freeze()
        return self

    @entry("the end of the recording", otherwise=_close_without_walk, ends=True)
    def stop(self, error: BaseException | None = None) -> Self:
        """Stop, and build the session from the recording.

        A heap walk at the end finds the holders of tensors. Ctrl-C during the walk ends it and is
        delivered when this returns; the recording is retained.

        Args:
            error: The exception that ended the run; only its text is retained.
        """
        if self.end(error):
            self.discard_walk()
            if self.interrupted:
                raise KeyboardInterrupt  # which `entry` delivers
        return self

    def follow_functions(self, variables: Mapping[str, Any]) -> FunctionCalls:
        """Return what follows the functions that the traced lines call.

        Their variables are recorded before they are freed.

        Args:
            variables: The namespace in which the lines run.
        """
        from nbmem.capture.hooks.function_calls import FunctionCalls
        from nbmem.capture.hooks.nested_calls import NestedCalls

        def recorder() -> Recorder | None:
            return None if self._recording is None else self._recording.outermost_recorder()

        def read(frames: list[FrameType], in_loop: bool) -> bool:  # noqa: FBT001 - a callback
            found, says_more = recorder(), False
            if found is not None:
                work = partial(found.record_variables, frames, in_loop=in_loop)
                says_more = without_collector(work)
            frames.clear()
            return says_more

        def released() -> None:
            if (found := recorder()) is not None:
                found.record_release()

        def hook_events() -> int:
            found = recorder()
            return 0 if found is None else found.hook_events.count

        nested = NestedCalls(read, released, hook_events)
        return FunctionCalls(variables, self.record_before_return, nested)

    def record_before_return(self, call: LastCall) -> None:
        """Record what a function's variables hold, then free them.

        The trace goes on.

        Args:
            call: The call of the function, which has returned or failed. Its frame is taken.
        """
        if self._recording is not None:
            without_collector(partial(self._recording.record_before_return, call))

    def end(
        self, error: BaseException | None = None, enough: Callable[[float], bool] | None = None
    ) -> bool:
        """Stop and build the session; the heap walk may be skipped.

        Never raises. The heap walk finds the holders of tensors.

        Args:
            error: The exception that ended the run; only its text is retained.
            enough: Called with the seconds of a long part to come; returns whether to stop. Or
                None.

        Returns:
            Whether the walk is complete. If not, `resume_walk` continues it.
        """
        if self._recording is None:
            return True
        with hold_signals() as held:
            over = without_collector(partial(self._close_and_walk, self._recording, error, enough))
            self._recording.freeze()
        self._recording.interrupted |= held.came
        return over

    @staticmethod
    def _close_and_walk(
        recording: Recording,
        error: BaseException | None,
        enough: Callable[[float], bool] | None,
    ) -> bool:
        """Close a recording and walk the heap; True if the walk is complete.

        nbmem's own objects would make Python collect here: what reference cycles keep would be in
        the recording and have no holder.
        """
        recording.close(error)
        return recording.record_names_and_holders(enough) is not False

    def resume_walk(self, enough: Callable[[float], bool]) -> bool:
        """Resume the heap walk that `end` left; return True when complete.

        Afterwards the report is new. No code that uses tensors may have run since `end`.
        """
        if self._recording is None or self._recording.record_names_and_holders(enough) is False:
            return False
        self._recording.freeze()
        self._reports.clear()
        self.discard_walk()
        return True

    @property
    def runs(self) -> bool:
        """True while it records."""
        return self._recording is not None and self._recording.runs

    def on_fault(self, part: str, err: BaseException) -> None:
        """Record what went wrong, for `report`."""
        if self._recording is not None:
            self._recording.on_fault(part, err)

    @property
    def recorder(self) -> Recorder | None:
        """The active recorder of an outermost trace, else None."""
        recording = self._recording
        alone = recording is not None and recording.runs and recording.outer is None
        return recording.recorder if recording is not None and alone else None

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C came while nbmem ended the recording itself."""
        return self._recording is not None and self._recording.interrupted

    def discard_walk(self) -> None:
        """Discard the rest of the heap walk."""
        if self._recording is not None:
            self._recording.forget()

    __enter__ = start

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop(error)

    def report(self, device: int | None = None) -> Report:
        """Return the report of what was recorded.

        Args:
            device: CUDA ordinal of the card; None for the one that held the most.

        Raises:
            NbmemError: The trace still runs, lies inside another, or saw no GPU memory.
        """
        from nbmem.api.render import read, unmuted

        if device in self._reports:
            return unmuted(self._reports[device])
        report, left_out = read(self._finished(), device)
        if not left_out:  # more parts may succeed next time, with more memory
            self._reports[device] = report
        return unmuted(report)

    def report_figures(self) -> Report:
        """Return the report without tips, for programs that read its figures.

        Raises:
            NbmemError: As for `report`.
        """
        from nbmem.api.render import read_figures

        return read_figures(self._finished())

    def release_reports(self) -> None:
        """Clear the cached reports; the next `report` builds a new one."""
        self._reports.clear()

    def all_tips(self, device: int | None = None) -> tuple[Finding, ...]:
        """Return every finding, muted or not.

        Includes those that matter only where memory is short.

        Args:
            device: As for `report`.

        Raises:
            NbmemError: As for `report`.
        """
        from nbmem.api.render import read

        read_tips = read(self._finished(), device, everything=True, other_cards=False)
        return read_tips.report.findings

    def would_run_on(self, device: int | None = None) -> tuple[CardFit, ...]:
        """Return whether the recorded requests fit on the common cards.

        They are replayed in the simulated allocator on each card's size. `report().would_run_on`
        also says what a recording cannot show.

        Args:
            device: As for `report`.

        Returns:
            One answer for each card, the smallest first; empty without a card.

        Raises:
            NbmemError: As for `report`.
        """
        found = self.report(device).would_run_on
        return () if found is None else found.cards

    def private(self) -> Trace:
        """Copy the recording without data on its author and machine.

        SECURITY.md lists that data.

        Raises:
            NbmemError: The trace still runs, lies inside another, or saw no GPU memory.
        """
        from nbmem.core.session.privacy import private_session

        session = private_session(self._finished())
        copied = Trace(session.name)
        copied.session = session
        return copied

    def save(self, path: str | Path, *, private: bool = False) -> Path:
        """Write the session to a file.

        `nbmem.open`, `nbmem report` and the viewer page read it.

        Args:
            path: The file.
            private: Leave out paths, source, user, host and other processes (SECURITY.md).

        Returns:
            The file's path; `.nbmem` is added if it has no suffix.
        """
        from nbmem.api.render import save

        trace = self.private() if private else self
        return save(trace._finished(), path, trace.report)  # noqa: SLF001 - this class's

    def export(
        self, form: str, path: str | Path, device: int | None = None, *, private: bool = False
    ) -> Path:
        """Write the recording for another program.

        An example is `t.export("perfetto", "train.json")`.

        Args:
            form: `html`, `json`, `csv`, `perfetto` or `snapshot` (`nbmem.views.exports`).
            path: The file.
            device: As for `report`, with its errors; NotWrittenError if it cannot be written.
            private: As for `save`.
        """
        from nbmem.report.analysis import card_ledger_of
        from nbmem.views.exports import find_format

        if private:
            return self.private().export(form, path, device)
        chosen, session = find_format(form), self._finished()
        return chosen.write(
            lambda: self.report(device), lambda: card_ledger_of(session, device), path
        )

    def _finished(self) -> Session:
        if self.session is not None:
            return self.session
        recording = self._recording
        if recording is not None and recording.faults:
            raise UsageError(" ".join(recording.faults))
        if recording is not None and recording.outer is not None:
            raise UsageError(
                f"{self.name!r} was traced inside {recording.outer.name!r}: its figures are a "
                "block of that report. Read the outer report, or trace one at a time."
            )
        raise UsageError(f"{self.name!r} is still being traced; its report is there when it ends.")

    def _new_recorder(self) -> Recorder:
        from nbmem.capture.record.recorder import Recorder

        main = vars(sys.modules["__main__"])
        names = self._namespace if self._namespace is not None else main
        card = virtual_card()
        engine = _engine(card)
        if card is not None and card.eager_estimate is not None:
            card.eager_estimate.begin()
        return Recorder(
            namespace=names,
            engine=engine,
            chosen=engine == TORCH or (card is not None and card.chosen),
            limits=_limits_of_virtual_card,
            watch_uses=None if card is None else _watch_block_uses,
            **self._options,
        )

    def __str__(self) -> str:
        from nbmem.api.render import text_of

        try:
            return text_of(self._finished(), None, self.report)
        except NbmemError as err:
            return f"nbmem: {err}"

    def widget(self, device: int | None = None) -> ExplorerWidget:
        """Return the report as a live widget.

        It needs `pip install 'nbmem[widget]'`. Its traits `moment`, `span` and `tensor` are the
        current selection. Observe them, set them, link them to other widgets, and use the widget in
        layouts of ipywidgets and Voila.

        Args:
            device: As for `report`.

        Raises:
            NbmemError: As for `report`; or a library that the widget needs is not installed.
        """
        from nbmem.report.analysis import card_ledger_of
        from nbmem.views.widget import explorer_widget

        try:
            report = self.report(device)
            card_ledger = card_ledger_of(self._finished(), device)
            return explorer_widget(report, card_ledger, self._history(report))
        except NbmemError:
            raise
        except Exception as err:
            raise NbmemError(
                f"The widget could not be made: {error_of(err)}. The report shows itself without "
                "it: end the cell with the trace's name. Please report it with the session's file "
                "(%nbmem save)."
            ) from err

    def cell_with_peak(self) -> CellDelta | None:
        """Return the line in the notebook's history of the cell that was recorded.

        Its peak is the one of its report, so of the card that `%%memtrace` was told to trace. It
        stays the counter's if there is no report of a card, or if the report's events do not reach
        back to the cell's beginning.
        """
        cell = self.cell
        if cell is None or self._has_reports_peak:
            return cell
        with contextlib.suppress(Exception):  # reported where the report was to be shown
            report = self.report(self._options["device"])
            if report.device.kind == "cuda" and not report.dropped_events:
                peak = CellPeak(
                    device=report.device.index, allocated=report.peak.allocated, exact=True
                )
                self.cell, self._has_reports_peak = replace(cell, peak=peak), True
        return self.cell

    def _history(self, _report: Report) -> tuple[CellDelta, ...]:
        """Return the notebook's cells up to this one, with its peak."""
        cell = self.cell_with_peak()
        return self.cells if cell is None else (*self.cells, cell)

    def _repr_mimebundle_(
        self, *, device: int | None = None, ooms: bool = True, **_options: Any
    ) -> dict[str, Any]:
        from nbmem.api.render import render_mimebundle

        try:
            return render_mimebundle(
                self._finished(), device, lambda: self.report(device), self._history, ooms=ooms
            )
        except NbmemError as err:
            return {"text/plain": f"nbmem: {err}"}


def trace(
    name: str = "trace",
    *,
    stacks: bool = False,
    device: int | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Trace:
    """Trace a block: `with nbmem.trace("train") as t: ...`, then `print(t)`.

    Args:
        name: Label of the report.
        stacks: Take a Python stack at each allocation (dearer; names the lines).
        device: CUDA ordinal of the one card to trace; None for every card that torch uses.
        namespace: Names of models, optimizers and tensors; None for `__main__`.
    """
    return Trace(name, stacks=stacks, device=device, namespace=namespace)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name a block of the running trace for the report, if there is one."""
    recorder = running_recorder()
    if recorder is None:
        yield
        return
    recorder.begin_block(name)
    try:
        yield
    finally:
        recorder.end_block()


def open(path: str | Path, *, max_size: int | str | None = None) -> Trace:  # noqa: A001 - nbmem.open
    """Open a saved session, or a snapshot of torch's _dump_snapshot().

    Args:
        path: The file.
        max_size: Limit on its size, packed and unpacked: bytes, or "4GiB"; None for 1 GiB.

    Raises:
        NbmemError: It is missing, too large, truncated, hostile or of another kind.
    """
    from nbmem.core.files.recording import read_recording

    session = read_recording(path, max_size)
    opened = Trace(session.name)
    opened.session = session
    return opened


def running_recorder() -> Recorder | None:
    """Return the active recorder, or None without a trace.

    There is at most one. Views of its progress use it.
    """
    recordings = sys.modules.get(
        "nbmem.capture.record.recording"
    )  # not imported: nothing was recorded yet
    recording = None if recordings is None else recordings.running()
    recorder: Recorder | None = None if recording is None else recording.recorder
    return recorder


def close_inherited_recording() -> None:
    """Close a recording in a process forked while its parent recorded.

    That recording is the parent's.
    """
    recordings = sys.modules.get("nbmem.capture.record.recording")
    recording = None if recordings is None else recordings.running()
    if recording is not None:
        recording.close()


def virtual_card() -> VirtualGPU | None:
    """Return the first active virtual card, or None."""
    virtual = sys.modules.get("nbmem.virtual")
    card: VirtualGPU | None = virtual.active() if virtual is not None else None
    return card


def _engine(card: VirtualGPU | None) -> str:
    """Return what makes the figures of the virtual cards in use.

    Empty on real cards.
    """
    from nbmem.engine import process

    if card is not None:
        return RULES
    return TORCH if process.active() else ""


def _watch_block_uses() -> BlockUseReader:
    """Begin to log the uses of a virtual card's memory; return the end of it."""
    from nbmem import virtual
    from nbmem.virtual.hardware.block_uses import BlockUseLog

    logs = [BlockUseLog(gpu) for gpu in virtual.gpus()]

    def end() -> BlockUseRows:
        found = [list(log.end()) for log in logs]
        return {at: found[at] for at, log in enumerate(logs) if log.complete}

    return end


def _limits_of_virtual_card() -> list[str]:
    """Describe what the virtual card could not imitate.

    These are the notes since its activation, with their effect on the figures.
    """
    card = virtual_card()
    if card is None:
        from nbmem.engine import process

        return process.limits()
    from nbmem.virtual.warnings import on_figures

    instead = [] if card.eager_estimate is None else card.eager_estimate.sentences()
    return [*on_figures(card.notes), *instead]
