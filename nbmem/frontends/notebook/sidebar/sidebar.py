"""Report a kernel's cells and traces to the hub, and run page actions.

A line under a traced cell shows its progress. The report replaces it by the display id. If a cell
has cleared its output, the report is displayed anew, since an update would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.clock import CLOCK, now_ms
from nbmem.core.runtime.entry_points import entry
from nbmem.core.units import format_bytes, format_peak
from nbmem.frontends.notebook.commands import estimates
from nbmem.frontends.notebook.display import show_bundle
from nbmem.frontends.notebook.engines import ranks_folders
from nbmem.frontends.notebook.sidebar.comms import Comms, run_between_cells
from nbmem.frontends.notebook.sidebar.output import CellOutput, can_replace_output
from nbmem.frontends.sidebar.hub import Hub
from nbmem.frontends.sidebar.messages import Cell, Sample
from nbmem.frontends.sidebar.request_handler import RequestHandler

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.capture.record.recorder import Recorder
    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.frontends.notebook.cell_hooks import RunningCell
    from nbmem.frontends.notebook.commands.base import Notebook
    from nbmem.frontends.notebook.options import CellOptions
    from nbmem.frontends.sidebar.hub_state import HubState
    from nbmem.report.model import Command

INTERVAL_S = 0.5
_STYLE = "font-variant-numeric:tabular-nums;opacity:0.8"


class StatusLine:
    """The status line under one traced cell.

    The cell's thread shows it; the hub's thread renews it.

    Args:
        shell: The kernel's shell.
        title: The trace's title.
        html: Whether HTML is shown besides plain text.
    """

    def __init__(self, shell: Any, title: str, *, html: bool) -> None:
        self._title = title
        self._html = html
        self._output: CellOutput | None = CellOutput(shell)
        self._text = f"{title}: traced"
        self._due = CLOCK.monotonic() + INTERVAL_S
        show_bundle(self._bundle(), display_id=self._output.id)
        self._output.watch()

    @entry("the line under the cell")
    def renew(self, sample: Sample) -> None:
        """Update the line with a sample, if it is due and its text differs."""
        output, text = self._output, _line(self._title, sample)
        if output is None or CLOCK.monotonic() < self._due or text == self._text:
            return
        self._due = CLOCK.monotonic() + INTERVAL_S
        self._text = text
        output.update(self._bundle())

    def end(self) -> CellOutput | None:
        """End the line; return its output, for the report that replaces it."""
        output = self._output
        if output is not None:
            output.unwatch()
        self._output = None
        return output

    def on_fault(self, _part: str, _err: Exception) -> None:
        """Stop renewing the line after a fault.

        The report replaces it nevertheless.
        """
        self._due = float("inf")

    def _bundle(self) -> dict[str, str]:
        bundle = {"text/plain": self._text}
        if self._html:
            from nbmem.views.markup import element

            bundle["text/html"] = str(element("div", self._text, style=_STYLE))
        return bundle


def _line(title: str, sample: Sample) -> str:
    """Format a sample: `train: forward, step 3; 2.10 GiB allocated`."""
    where = [sample.phase] if sample.phase else []
    where += [f"step {sample.step}"] if sample.step is not None else []
    bytes_ = [
        f"{f'card {card.index} ' if len(sample.cards) > 1 else ''}"
        f"{format_bytes(card.allocated)} allocated, "
        f"peak {format_peak(card.peak, exact=card.peak_exact)}"
        for card in sample.cards
    ]
    if (host := sample.host) is not None:
        peak = format_peak(host.peak, exact=host.peak_exact)
        bytes_ = [f"{format_bytes(host.process)} resident, peak {peak}"]
    return f"{title}: {'; '.join([*([', '.join(where)] if where else []), *bytes_]) or 'traced'}"


class Sidebar:
    """A watcher of the cells and traces of a shell that has a kernel."""

    def __init__(self, notebook: Notebook, before: HubState | None = None) -> None:
        self._notebook = notebook
        self._comms = Comms()
        self.hub = Hub(self._comms.send, _recorder, before)
        self._cells: dict[int, Cell] = {}
        self._progress: StatusLine | None = None

    def open(self) -> None:
        """Let pages find this kernel, and watch its cells and traces."""
        kernel = self._notebook.shell.kernel
        answers = RequestHandler(
            self.hub,
            NotebookActions(self._notebook),
            lambda action: run_between_cells(kernel, action),
        )
        self._comms.open(answers.to)
        self._notebook.hooks.watcher = self
        self._notebook.tracer.watcher = self
        self.hub.open()

    def close(self) -> None:
        """Stop watching, and let no page find this kernel."""
        self._notebook.hooks.watcher = None
        self._notebook.tracer.watcher = None
        try:
            self.hub.close()
        finally:
            self._comms.close()

    # --- called by the hooks

    def cell_begun(self, cell: RunningCell) -> None:
        """Report to the hub that a cell is about to run."""
        self._cells[id(cell)] = begun = Cell(
            number=cell.number,
            cell_id=cell.cell_id,
            label=cell.label,
            traced=cell.trace is not None,
            begun_ms=now_ms(),
        )
        self.hub.cell_begun(begun, lambda: ranks_folders(cell.code), cell.meter)

    def cell_ended(self, cell: RunningCell, delta: CellDelta | None) -> None:
        """Report to the hub that a cell has run and its report is shown."""
        begun = self._cells.pop(id(cell), None)
        if begun is not None:
            self.hub.cell_ended(begun, delta)

    def loading_cell_ended(self) -> None:
        """Report to the hub that the cell that loaded nbmem has run."""
        self.hub.loading_cell_ended(
            Cell(number=None, cell_id=None, label="", traced=False, begun_ms=now_ms())
        )

    # --- called by the tracer

    def trace_begun(self, title: str, options: CellOptions) -> None:
        """Show a status line under the cell whose trace has begun."""
        shell = self._notebook.shell
        if can_replace_output(shell):
            self._progress = StatusLine(shell, title, html=options.widget)
            self.hub.watchers.append(self._progress.renew)

    def trace_ended(self) -> CellOutput | None:
        """End the status line; return the output that the report replaces."""
        progress = self._progress
        if progress is None:
            return None
        self.hub.watchers[:] = [one for one in self.hub.watchers if one != progress.renew]
        place = progress.end()
        self._progress = None
        return place

    def reported(self, trace: Trace, device: int | None) -> None:
        """Send the summary of a trace's report to the hub."""
        from nbmem.frontends.sidebar.report_summary import summary

        known = self.hub.state()
        cell = next((cell for cell in self._cells.values() if cell.traced), known.cell)
        if cell is None and known.report is not None:  # between cells the last report is renewed
            cell = known.report.cell
        self.hub.show(summary(trace.report(device), cell, now_ms()))


class NotebookActions:
    """The actions that a page may request in a notebook."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    @property
    def tracing_next(self) -> bool:
        """True if the next cell is traced without `%%memtrace`."""
        return self._notebook.hooks.trace_next

    @tracing_next.setter
    def tracing_next(self, on: bool) -> None:
        self._notebook.hooks.trace_next = on

    def choose_card(self, card: str) -> str:
        """Activate a virtual card, or deactivate it with `off`.

        `off` is refused if a mistaken click in a menu would lose tensors.
        """
        if card.lower() == "off":
            from nbmem.api import device_selection

            device_selection.require_no_live_tensors(self._notebook.shell.user_ns)
        from nbmem.frontends.notebook.commands.gpu import switch_card

        return switch_card(self._notebook, card)

    def expect_question(self) -> None:
        """Start the estimate subprocess, if none is ready."""
        estimates.prepare_estimates(self._notebook.shell)

    def free(self, command: Command) -> tuple[str, int]:
        """Free what a command names; return the message and the bytes freed."""
        from nbmem.api.freeing import perform
        from nbmem.views.freed_memory import sentences

        done = perform(command)
        self._notebook.tracer.freed.extend(done)
        message = " ".join(sentence for freed in done for sentence in sentences(freed))
        return message, sum(freed.measured for freed in done)

    def mute(self, rule: str, *, muted: bool) -> str:
        """Mute or unmute a rule; return the message."""
        from nbmem.frontends.notebook.commands import mute

        return mute.mute(rule) if muted else mute.unmute(rule)

    def muted(self) -> tuple[str, ...]:
        """Return the muted rules, sorted."""
        from nbmem.report.tips.mutes import muted

        return tuple(sorted(muted()))


def _recorder() -> Recorder | None:
    """Return the running recorder, or None.

    Nothing is imported to find that out.
    """
    import sys

    api = sys.modules.get("nbmem.api.tracing")
    return None if api is None else api.running_recorder()
