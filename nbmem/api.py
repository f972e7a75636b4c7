"""nbmem from Python: trace a block, name a phase, open what was saved."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from nbmem.core.errors import NbmemError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from nbmem.core.history import CellDelta
    from nbmem.core.session import Session
    from nbmem.record.recorder import Recorder
    from nbmem.report import Finding, Report
    from nbmem.views.widget.explorer import ExplorerWidget
    from nbmem.virtual.device import VirtualGPU

_running: list[tuple[Trace, Recorder]] = []
"""Traces in progress, outermost first, with the one recorder: only the outermost records."""


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
        self._reports: dict[int | None, Report] = {}

    def start(self) -> Self:
        """Begin to record; a second call while it records does nothing."""
        if any(trace is self for trace, _ in _running):
            return self
        self.session, self._outer = None, None
        self._reports.clear()
        if _running:
            self._outer, recorder = _running[0]
            recorder.begin_block(self.name)
        else:
            recorder = self._new_recorder()
            recorder.start()
        _running.append((self, recorder))
        return self

    def stop(self, error: BaseException | None = None) -> Self:
        """End, and freeze what was recorded.

        Args:
            error: The exception that ended the run; only its text is kept.
        """
        from nbmem.core.oom import error_text

        while any(trace is self for trace, _ in _running):
            last, recorder = _running.pop()  # one inside that was never stopped ends here, too
            if last._outer is not None:  # noqa: SLF001 - this class's own
                recorder.end_block()
            else:
                _note_limits_of_virtual_card(recorder)
                last.session = recorder.stop(last.name, error_text(error))
        return self

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
        from nbmem.core.mutes import muted

        if device not in self._reports:
            self._reports[device] = self._read(device)
        report, silent = self._reports[device], muted()
        if not any(finding.rule in silent for finding in report.findings):
            return report
        heard = tuple(finding for finding in report.findings if finding.rule not in silent)
        return replace(report, findings=heard)

    def all_tips(self, device: int | None = None) -> tuple[Finding, ...]:
        """Every finding, muted or not, with those that matter only where memory is short.

        Args:
            device: As for `report`.

        Raises:
            NbmemError: As for `report`.
        """
        return self._read(device, everything=True).findings

    def _read(self, device: int | None, *, everything: bool = False) -> Report:
        from nbmem.analysis import books_of, report_of
        from nbmem.analysis.oom import said_already
        from nbmem.tips import advise

        books = books_of(self._finished(), device)
        report = report_of(books)
        advice = advise(books.session, books, report, everything=everything)
        said = frozenset() if everything else said_already(report.ooms)
        findings = tuple(found for found in advice.findings if found.rule not in said)
        return replace(report, findings=findings, notes=(*report.notes, *advice.notes))

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
            device: As for `report`, and so are the errors; or it cannot be written.
        """
        from nbmem.analysis import books_of
        from nbmem.views.exports import find_format

        chosen, session = find_format(form), self._finished()
        return chosen.write(lambda: self.report(device), lambda: books_of(session, device), path)

    def _finished(self) -> Session:
        if self.session is not None:
            return self.session
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
        from nbmem.views.text import render_text

        try:
            return render_text(self.report())
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
        from nbmem.views.widget import explorer_widget

        report = self.report(device)
        return explorer_widget(report, books_of(self._finished(), device), self._history(report))

    def _history(self, report: Report) -> tuple[CellDelta, ...]:
        """The notebook's cells up to this one, which knows its peak now."""
        if self.cell is None:
            return self.cells
        return (*self.cells, replace(self.cell, peak=report.peak.allocated))

    def _repr_mimebundle_(
        self, *, device: int | None = None, ooms: bool = True, **_options: Any
    ) -> dict[str, Any]:
        from nbmem.views.bundle import mimebundle

        try:
            report = self.report(device)
            if not ooms:  # they have an output of their own
                report = replace(report, ooms=())
            return mimebundle(report, self._history(report))
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


def open(path: str | Path, *, max_size: int | str | None = None) -> Trace:  # noqa: A001 - nbmem.open
    """Open a saved session, or a snapshot that torch's _dump_snapshot() wrote.

    Args:
        path: The file.
        max_size: What it may have, packed and unpacked: bytes, or "4GiB"; None for 1 GiB.

    Raises:
        NbmemError: It is missing, too large, truncated, hostile or of another kind.
    """
    from nbmem.core.recording import read_recording

    opened = Trace()
    opened.session = read_recording(path, max_size)
    opened.name = opened.session.name
    return opened


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
