"""nbmem from Python: trace a block, name a phase, open what was saved."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nbmem.core.entry import entry, lost_sentence
from nbmem.core.errors import NbmemError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from nbmem.core.history import CellDelta
    from nbmem.core.session import Session
    from nbmem.record.recorder import Recorder
    from nbmem.report import Finding, Report
    from nbmem.views.widget.explorer import ExplorerWidget
    from nbmem.virtual.device import VirtualGPU

_running: list[tuple[Trace, Recorder]] = []
"""Traces in progress, outermost first, with the one recorder: only the outermost records."""


class Closed(NamedTuple):
    """A recording that has ended and is not frozen yet.

    Attributes:
        recorder: Has it.
        error: The exception that ended it, as text; None if it ended well.
    """

    recorder: Recorder
    error: str | None


class Trace:
    """One traced stretch of a run, and its report afterwards.

    Use it as a context manager (`with nbmem.trace("train") as t: ...`), or call `start` and `stop`.
    Nothing in it raises into the code that is traced. A trace inside a trace becomes a block of the
    outer one.

    Attributes:
        session: What was recorded; None before the end, and for a trace inside another.
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
        self.session: Session | None = None
        self.cells: tuple[CellDelta, ...] = ()
        self.cell: CellDelta | None = None
        self._options: dict[str, Any] = {"stacks": stacks, "device": device}
        self._namespace = namespace
        self._outer: Trace | None = None
        self._closed: Closed | None = None
        self._faults: list[str] = []
        self._reports: dict[int | None, Report] = {}

    def _itself(self, *_arguments: Any) -> Self:
        return self

    @entry("this recording", otherwise=_itself)
    def start(self) -> Self:
        """Begin to record; a second call while it records does nothing.

        Where nbmem fails, nothing is recorded, and `report` says why. An interrupt (Ctrl-C) is the
        user's: it is delivered when this returns, and nothing is left on.
        """
        if any(trace is self for trace, _ in _running):
            return self
        self.session, self._outer, self._closed = None, None, None
        self._reports.clear()
        self._faults.clear()
        if _running:
            self._outer, recorder = _running[0]
            recorder.begin_block(self.name)
        else:
            recorder = self._new_recorder()
            recorder.start()
        _running.append((self, recorder))
        return self

    def _in_any_case(self, error: BaseException | None = None) -> Self:
        self.close(error)
        self.freeze()
        return self

    @entry("the end of the recording", otherwise=_in_any_case)
    def stop(self, error: BaseException | None = None) -> Self:
        """End, and freeze what was recorded.

        An interrupt (Ctrl-C) meanwhile ends the look at who holds what, and is delivered when this
        returns; what was recorded is kept.

        Args:
            error: The exception that ended the run; only its text is kept.
        """
        self.close(error)
        for _ in self.look():
            pass
        self.freeze()
        if self._closed is not None and self._closed.recorder.interrupted:
            raise KeyboardInterrupt  # which `entry` delivers
        return self

    def close(self, error: BaseException | None = None) -> None:
        """End the recording itself: from here on nothing of nbmem's is in torch. Never raises.

        `stop` does this first. Whoever calls it alone calls `look`, or not, and then `freeze`.

        Args:
            error: The exception that ended the run; only its text is kept.
        """
        while any(trace is self for trace, _ in _running):
            last, recorder = _running[-1]  # one inside that was never stopped ends here, too
            if last._outer is not None:  # noqa: SLF001 - this class's own
                recorder.end_block()
            else:
                with recorder.guard("what the virtual card could not do"):
                    _note_limits_of_virtual_card(recorder)
                recorder.close()
                last._closed = Closed(recorder, _text_of(error))  # noqa: SLF001
            _running.pop()

    def look(self) -> Iterator[None]:
        """After `close`: see who holds what, in pieces of a few milliseconds. Never raises.

        It may be left after any piece. Nothing that uses tensors may run before it is over.
        """
        if self._closed is not None and self.session is None:
            yield from self._closed.recorder.look()

    def freeze(self) -> None:
        """After `close`: make a session of what is there. Never raises."""
        if self._closed is not None and self.session is None:
            self.session = self._closed.recorder.freeze(self.name, self._closed.error)

    def lost(self, part: str, err: BaseException) -> None:
        """Keep what went wrong, for `report`."""
        self._faults.append(lost_sentence(part, err))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop(error)

    def report(self, device: int | None = None) -> Report:
        """What was recorded, ready to draw.

        Args:
            device: CUDA ordinal of the card; None for the one with the most events.

        Raises:
            NbmemError: The trace still runs, lies inside another, or saw no GPU memory.
        """
        from nbmem.reading import read, unmuted

        if device in self._reports:
            return unmuted(self._reports[device])
        report, whole = read(self._finished(), device)
        if whole:  # what was left out may be there next time, once there is memory again
            self._reports[device] = report
        return unmuted(report)

    def all_tips(self, device: int | None = None) -> tuple[Finding, ...]:
        """Every finding, muted or not, with those that matter only where memory is short.

        Args:
            device: As for `report`.

        Raises:
            NbmemError: As for `report`.
        """
        from nbmem.reading import read

        return read(self._finished(), device, everything=True).report.findings

    def save(self, path: str | Path) -> Path:
        """Write the session to a file that `nbmem.open` and `nbmem report` read.

        Returns:
            The file's path; `.nbmem` is added if it has no suffix.
        """
        from nbmem.core.session_file import save_session

        return save_session(self._finished(), path)

    def export(self, form: str, path: str | Path, device: int | None = None) -> Path:
        """Write it for another program: `t.export("perfetto", "train.json")`.

        Args:
            form: `html`, `json`, `csv`, `perfetto` or `snapshot` (`nbmem.views.exports`).
            path: The file.
            device: As for `report`.

        Raises:
            NbmemError: As for `report`; or there is no such format.
            OSError: The file cannot be written.
        """
        from nbmem.analysis import books_of
        from nbmem.views.exports import find_format

        chosen, target = find_format(form), Path(path)
        session = self._finished()
        chosen.write(lambda: self.report(device), lambda: books_of(session, device), target)
        return target

    def _finished(self) -> Session:
        if self.session is not None:
            return self.session
        if self._faults:
            raise NbmemError(" ".join(self._faults))
        if self._outer is not None:
            raise UsageError(
                f"{self.name!r} was traced inside {self._outer.name!r}: its figures are a block of "
                "that report. Read the outer report, or trace one at a time."
            )
        raise UsageError(f"{self.name!r} is still being traced; its report is there when it ends.")

    def _new_recorder(self) -> Recorder:
        from nbmem.record.recorder import Recorder

        main = vars(sys.modules["__main__"])
        names = self._namespace if self._namespace is not None else main
        return Recorder(namespace=names, virtual=_virtual_card() is not None, **self._options)

    def __str__(self) -> str:
        from nbmem.reading import text_of

        try:
            return text_of(self._finished(), None, self.report)
        except NbmemError as err:
            return f"nbmem: {err}"

    def widget(self, device: int | None = None) -> ExplorerWidget:
        """The report as a live widget (needs `pip install 'nbmem[widget]'`).

        Its traits `moment`, `span` and `tensor` are what is chosen in it: observe them, set them,
        link them to other widgets, and put it into layouts of ipywidgets and Voila.

        Args:
            device: As for `report`.

        Raises:
            NbmemError: As for `report`; or a library that the widget needs is not installed.
        """
        from nbmem.analysis import books_of
        from nbmem.core.faults import error_of
        from nbmem.views.widget import explorer_widget

        try:
            report = self.report(device)
            books = books_of(self._finished(), device)
            return explorer_widget(report, books, self._history(report))
        except NbmemError:
            raise
        except Exception as err:
            raise NbmemError(
                f"The widget could not be made: {error_of(err)}. The report shows itself without "
                "it: end the cell with the trace's name. Please report it with the session's file "
                "(%nbmem save)."
            ) from err

    def _history(self, report: Report) -> tuple[CellDelta, ...]:
        """The notebook's cells up to this one, which knows its peak now."""
        if self.cell is None:
            return self.cells
        return (*self.cells, replace(self.cell, peak=report.peak.allocated))

    def _repr_mimebundle_(
        self, *, device: int | None = None, ooms: bool = True, **_options: Any
    ) -> dict[str, Any]:
        from nbmem.reading import shown

        try:
            return shown(
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
        namespace: Where models, optimizers and tensors have their names; None for `__main__`.
    """
    return Trace(name, stacks=stacks, device=device, namespace=namespace)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name a block of the running trace, as it shall appear in the report; else do nothing."""
    if not _running:
        yield
        return
    recorder = _running[0][1]
    recorder.begin_block(name)
    try:
        yield
    finally:
        recorder.end_block()


def open(path: str | Path) -> Trace:  # noqa: A001 - the word that a user looks for: nbmem.open
    """Open a saved session, or a snapshot that torch's _dump_snapshot() wrote.

    Raises:
        FileFormatError: The file is missing, truncated, hostile or of another kind.
    """
    from nbmem.core.recording import read_recording

    session = read_recording(path)
    opened = Trace(session.name)
    opened.session = session
    return opened


def _text_of(error: BaseException | None) -> str | None:
    """An exception as text, whatever its own class does when it is asked for one."""
    from nbmem.core.oom import error_text

    try:
        return error_text(error)
    except Exception:  # noqa: BLE001 - the user's `__str__`
        return None if error is None else error_of(error)


def running_recorder() -> Recorder | None:
    """The one recorder that records now, for who shows its progress; None without a trace."""
    return _running[0][1] if _running else None


def _virtual_card() -> VirtualGPU | None:
    virtual = sys.modules.get("nbmem.virtual")
    card: VirtualGPU | None = virtual.active() if virtual is not None else None
    return card


def _note_limits_of_virtual_card(recorder: Recorder) -> None:
    """What it could not do as the real one would since it was switched on, and what that means."""
    card = _virtual_card()
    if card is not None:
        from nbmem.virtual.notes import on_figures

        for sentence in on_figures(card.notes):
            recorder.note(sentence)
