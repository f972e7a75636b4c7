"""Run hooks around every cell: a memory delta, or a trace on request.

An interrupt that came before a cell is delivered to its first line.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.core.errors import UsageError
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.interrupts import hold_signals
from nbmem.frontends.notebook.caller_context import cell_depth
from nbmem.frontends.notebook.error_boundary import error_boundary, notify, shell_entry
from nbmem.frontends.notebook.failed_cells import FailureWatch, cell_error
from nbmem.frontends.notebook.options import CellOptions, asks_for_help, parse_cell_line
from nbmem.frontends.notebook.transformer import is_nbmem_magic, memtrace_line

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.capture.record.cell_deltas import DeltaReader
    from nbmem.capture.torch_memory.peak_counters import PeakMeter
    from nbmem.core.session.cell_delta import CellDelta, CellPeak, HostDelta
    from nbmem.frontends.notebook.tracer import MemoryPeakExceededError, Tracer


class CellInterrupter:
    """An AST transformer that interrupts the next compiled cell, once.

    IPython ignores exceptions of its callbacks, and would run the cell to its end. So a transformer
    of its syntax tree is installed from the interrupt to that cell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def arm(self) -> None:
        """Interrupt the cell that is about to run."""
        self.disarm()
        self._shell.ast_transformers = [*self._shell.ast_transformers, self]

    def disarm(self) -> None:
        """Remove the transformer, so that the next cell runs."""
        others = [one for one in self._shell.ast_transformers if one is not self]
        if len(others) != len(self._shell.ast_transformers):
            self._shell.ast_transformers = others

    def visit(self, tree: ast.Module) -> ast.Module:
        """Insert the interrupt into a cell's tree, and disarm.

        IPython calls this with the tree.
        """
        self.disarm()
        (first,) = ast.parse("__import__('_thread').interrupt_main()").body
        tree.body.insert(0, first)
        return ast.fix_missing_locations(tree)


MAX_ROWS = 10_000
"""Rows of the history that are retained: a bound for a notebook that runs for weeks."""


@dataclass(slots=True, kw_only=True)
class RunningCell:
    """A cell between its two events.

    Attributes:
        title: The trace's title: the user's name for it, or `In [3]`.
        label: The history's label: the user's name for it, or the cell's first line.
        code: Its source.
        number: The 3 of `In [3]`; None for a cell that is not stored in IPython's history.
        cell_id: The front end's id of the cell, if it sends one.
        counted: Whether it gets a line in the history.
        options: The options of its `%%memtrace` line.
        trace: The full trace, or None.
        meter: Measures its peak on each card; None after `%nbmem off`.
        read: Whether the counters were read before it.
        begun_ns: When it began, on the monotonic clock.
    """

    title: str
    label: str
    code: str
    number: int | None
    cell_id: str | None
    counted: bool
    options: CellOptions
    trace: Trace | None
    meter: PeakMeter | None = None
    read: bool = False
    begun_ns: int = field(default_factory=CLOCK.monotonic_ns)


class CellListener(Protocol):
    """Interface of an object that is notified of cells (the sidebar)."""

    def cell_begun(self, cell: RunningCell) -> None:
        """Handle a cell that is about to run."""

    def cell_ended(self, cell: RunningCell, delta: CellDelta | None) -> None:
        """Handle a cell that has run and whose report is shown.

        `delta` is its line in the history, or None.
        """

    def loading_cell_ended(self) -> None:
        """Handle the end of the cell that has loaded nbmem."""


class CellHooks:
    """The `pre_run_cell` and `post_run_cell` hooks of one shell.

    Cells inside a cell fire both events, too, and are skipped.

    Attributes:
        rows: One delta for each cell that touched a card.
        host_rows: One for each other cell with torch.
        deltas: Whether deltas are read (`%nbmem on` and `off`).
        trace_next: Whether the next counted cell is traced without a `%%memtrace` line.
        watcher: The listener that is notified of cells, or None.
    """

    def __init__(self, shell: Any, tracer: Tracer) -> None:
        self.rows: deque[CellDelta] = deque(maxlen=MAX_ROWS)
        self.host_rows: deque[HostDelta] = deque(maxlen=MAX_ROWS)
        self.deltas = True
        self.trace_next = False
        self.watcher: CellListener | None = None
        self._shell = shell
        self._tracer = tracer
        self._reader: DeltaReader | None = None
        self._failures = FailureWatch(shell)
        self._interrupt = CellInterrupter(shell)
        # Between cells this is the next cell's number in every IPython; older ones raise it after
        # pre_run_cell, newer ones before.
        self._next: int = shell.execution_count
        # One for each thread: ipykernel's subshells run cells beside the main one.
        self._running: dict[int, RunningCell] = {}

    @shell_entry("prepare this cell")
    def pre_run_cell(self, info: Any) -> None:
        """Prepare the cell that IPython is about to run."""
        if cell_depth() > 1:
            return
        with hold_signals() as held, error_boundary("prepare this cell"):
            self._interrupt.disarm()
            with error_boundary("look who holds what"):
                self._tracer.later.finish_now()
            self._end_stale_cell()
            number = self._next if info.store_history else None
            cell = RunningCell(
                title=_title(number),
                label=_first_line(info.raw_cell),
                code=info.raw_cell,
                number=number,
                cell_id=getattr(info, "cell_id", None),
                counted=self.deltas and info.store_history and not is_nbmem_magic(info.raw_cell),
                options=CellOptions(),
                trace=None,
            )
            self._running[threading.get_ident()] = cell
            line = memtrace_line(info.raw_cell)
            if line is not None and asks_for_help(line):
                cell.counted, line = False, None
            if cell.counted and self.trace_next:
                self.trace_next, line = False, line or ""
            if line is not None:
                self._start(cell, line)
            self._begin_readings(cell)
            if self.watcher is not None:
                self.watcher.cell_begun(cell)
            if cell.trace is not None:
                self._tracer.mark_user_time(begins=True)
        if held.came:
            self._interrupt.arm()

    def _begin_readings(self, cell: RunningCell) -> None:
        """Read what is on the cards before a cell, and watch how it fails."""
        if self.deltas:
            from nbmem.capture.torch_memory.peak_counters import begin_measuring

            cell.meter = begin_measuring()
        if _torch_imported():
            if cell.counted:
                self._deltas().before()
                cell.read = True
            self._failures.begin()

    @shell_entry("finish this cell")
    def _cell_is_over(self, result: Any) -> None:
        with hold_signals():
            if cell_depth():
                return
            with error_boundary("count the cells"):
                self._next = self._shell.execution_count
            cell = self._running.pop(threading.get_ident(), None)
            if cell is None:  # the cell that loaded the extension
                if self.watcher is not None:
                    with error_boundary("tell the sidebar"):
                        self.watcher.loading_cell_ended()
                return
            if cell.trace is not None:
                self._tracer.mark_user_time(begins=False)
                self._tracer.release_variables(getattr(result, "error_in_exec", None))
            with error_boundary("finish this cell"):
                exceeded = self._finish(cell, result)
                if exceeded is not None and getattr(result, "success", False):
                    self._fail(result, exceeded)
            if cell.trace is not None:  # even after a failure above
                self._tracer.release_trace(cell.trace)

    @shell_entry("finish this cell", otherwise=_cell_is_over)
    def post_run_cell(self, result: Any) -> None:
        """Finish the cell that IPython has run, successfully or not.

        The newest ipykernel may pass no result.
        """
        self._cell_is_over(result)

    def take_interrupt(self) -> None:
        """Handle a Ctrl-C that came while one of the hooks ran.

        Before the cell it interrupts the cell. After the cell a sentence reports it.
        """
        inside = 1
        with suppress(KeyboardInterrupt):  # a second Ctrl-C
            inside = cell_depth()
        if inside:
            self._interrupt.arm()
        else:
            notify("interrupted as this cell ended; what was recorded is kept.")

    def number(self) -> int | None:
        """Return the running cell's number, the 3 of `In [3]`, or None."""
        cell = self._running.get(threading.get_ident())
        return None if cell is None else cell.number

    def title(self) -> str:
        """Return the default title of the running cell."""
        return _title(self.number())

    def close(self) -> None:
        """End and show every running trace; the extension is being unloaded."""
        self._tracer.later.stop()
        while self._running:
            _, cell = self._running.popitem()
            if cell.meter is not None:
                cell.meter.end()
            if cell.trace is not None:
                with error_boundary("end the trace"):
                    self._tracer.end(cell.trace, cell.options, None)
                self._tracer.release_trace(cell.trace)
        self._tracer.release_unended()
        self._failures.close()
        self._interrupt.disarm()
        counters: Any = sys.modules.get("nbmem.capture.torch_memory.peak_counters")
        if counters is not None:
            counters.restore_functions()

    def _start(self, cell: RunningCell, line: str) -> None:
        try:
            cell.options = parse_cell_line(line)
        except UsageError as err:
            notify(f"{err} This cell runs untraced.")
            return
        cell.title = cell.options.name or cell.title
        cell.label = cell.options.name or cell.label
        cell.trace = self._tracer.begin(cell.options, cell.title)

    def _finish(self, cell: RunningCell, result: Any) -> MemoryPeakExceededError | None:
        error = cell_error(result)
        row = None
        peak = None if cell.meter is None else cell.meter.end()
        ran = getattr(result, "error_before_exec", None) is None
        if cell.counted and _torch_imported():
            with error_boundary("read this cell's delta"):
                row = self._row(cell, type(error).__name__ if error else None, peak)
        row = row if ran else None  # no code ran, so it has no line and no badge
        exceeded = None
        if cell.trace is not None and not ran:
            self._tracer.drop(cell.trace, error)
        elif cell.trace is not None:
            cell.trace.cells, cell.trace.cell = tuple(self.rows), row
            exceeded = self._tracer.end(cell.trace, cell.options, error)
            self._tracer.kept.number(cell.trace, cell.number)
            row = cell.trace.cell_with_peak()
        if row is not None:
            self.rows.append(row)
        elif ran and self._reader is not None:
            self._reader.keep_of_host(self.host_rows, cell.trace)
        with error_boundary("explain how this cell failed"):
            self._failures.explain(error, traced=cell.trace is not None, row=row)
        if self.watcher is not None:
            self.watcher.cell_ended(cell, row)
        return exceeded

    def _row(self, cell: RunningCell, error: str | None, peak: CellPeak | None) -> CellDelta | None:
        reader = self._deltas()
        if not cell.read:
            reader.before_torch(cell.begun_ns)
        return reader.after(cell.label, error, cell.number, peak)

    def _fail(self, result: Any, exceeded: MemoryPeakExceededError) -> None:
        """Mark the cell as failed with this exception.

        Run All stops, and nbclient and nbconvert report it.
        """
        result.error_in_exec = exceeded
        self._shell.last_execution_succeeded = False
        kind = type(exceeded)
        self._shell._showtraceback(kind, exceeded, [f"{kind.__name__}: {exceeded}"])  # noqa: SLF001 - showtraceback() would print our frames

    def _end_stale_cell(self) -> None:
        """End what an earlier cell left open because its end event never came."""
        stale = self._running.pop(threading.get_ident(), None)
        if stale is not None and stale.meter is not None:
            stale.meter.end()
        if stale is not None and stale.trace is not None:
            self._tracer.end(stale.trace, stale.options, KeyboardInterrupt("the cell never ended"))
            self._tracer.release_trace(stale.trace)
        if not any(cell.trace is not None for cell in self._running.values()):
            self._tracer.release_unended()
        if stale is not None and self.watcher is not None:
            self.watcher.cell_ended(stale, None)

    def _deltas(self) -> DeltaReader:
        if self._reader is None:
            from nbmem.capture.record.cell_deltas import DeltaReader

            self._reader = DeltaReader()
        return self._reader


def _title(number: int | None) -> str:
    return "cell" if number is None else f"In [{number}]"


def _torch_imported() -> bool:
    """Return whether the user has imported torch.

    Without it there is nothing to read. This function must not import it.
    """
    return "torch" in sys.modules


def _first_line(raw_cell: str) -> str:
    """Return a cell's first line of code, or its first line if it has none."""
    lines = [line.strip() for line in raw_cell.splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith(("#", "%%"))]
    return next(iter(code or lines), "")
