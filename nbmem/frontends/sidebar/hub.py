"""Push memory samples to the sidebar from a thread while a cell runs.

Between cells the thread sleeps and sends nothing. A server counts each message as activity, so a
kernel that sent messages while idle would never be culled.

The kernel pushes, since a request of the sidebar would wait for the cell. It pushes on iopub, since
a `comm_open` from the kernel makes front ends without nbmem warn. This thread touches no tensor.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.clock import CLOCK, now_ms
from nbmem.core.runtime.entry_points import entry
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.warning_filter import suppress_warnings
from nbmem.core.version import __version__
from nbmem.frontends.sidebar.hub_state import HubState
from nbmem.frontends.sidebar.message_codec import encode
from nbmem.frontends.sidebar.messages import (
    USUAL_HZ,
    CellBegun,
    CellEnded,
    Loaded,
    Note,
    Processes,
    Sample,
    Unloaded,
)
from nbmem.frontends.sidebar.requests import MOST_CELLS
from nbmem.frontends.sidebar.sample_reader import Readings, has_figures

if TYPE_CHECKING:
    from nbmem.capture.record.recorder import Recorder
    from nbmem.capture.torch_memory.peak_counters import PeakMeter
    from nbmem.core.session.cell_delta import CellDelta
    from nbmem.frontends.sidebar.messages import Cell, LastReport, Push
    from nbmem.frontends.sidebar.sample_reader import Folders
    from nbmem.report.model import Command

logger = logging.getLogger("nbmem")

KEPT_MS = 60_000
"""Samples that a new page receives: one minute."""
PROCESSES_S = 5
"""Seconds between reads of other processes: each costs ten times a reading."""


class Hub:
    """The kernel's side of every connected sidebar.

    Args:
        send: Sends one message to all sidebars; an exception in it ends the readings.
        recorder: The recorder that runs now, or None.
        before: State of an earlier hub.

    Attributes:
        hz: Readings a second while a cell runs.
        watchers: Called with each reading, from the hub's thread, even if nothing has changed.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        recorder: Callable[[], Recorder | None],
        before: HubState | None = None,
    ) -> None:
        self.hz: float = USUAL_HZ
        self.watchers: list[Callable[[Sample], None]] = []
        self._send = send
        self._readings = Readings(recorder)
        before = before or HubState()
        self._samples = deque(before.samples)
        self._cells = deque(before.cells, maxlen=MOST_CELLS)
        self._report, self._processes = before.report, before.processes
        self._ranks = before.ranks
        self._notes: list[str] = []
        self._running: list[Cell] = []
        self._announced: Cell | None = None
        self._processes_due = 0.0
        self._lock = threading.Lock()
        self._awake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def open(self) -> None:
        """Announce that nbmem is loaded."""
        self._talk(lambda: self._push(Loaded(t_ms=now_ms(), package=__version__)))

    def cell_begun(
        self, cell: Cell, folders: Folders = tuple, meter: PeakMeter | None = None
    ) -> None:
        """Start the readings of a cell.

        Args:
            cell: The cell.
            folders: Returns the folders into which it lets ranks write so far.
            meter: Measures its peaks; None if only readings are known.
        """
        self._talk(self._begin, cell, folders, meter)

    def cell_ended(self, cell: Cell, delta: CellDelta | None) -> None:
        """End the readings of a cell; no message is sent after this returns.

        Args:
            cell: The cell.
            delta: Memory that it took and left, or None.
        """
        self._talk(self._end, cell, delta)

    def loading_cell_ended(self, cell: Cell) -> None:
        """Sample the cards after the cell that loaded nbmem.

        Its begin was not reported. Without this a page would say that nothing is there until the
        next cell runs. Where no card is in use, nothing is pushed: the page offers a virtual one.
        """
        self._talk(self._end_loading, cell)

    def sample_once(self) -> None:
        """Sample the cards between two cells, after a page's request.

        Nothing is pushed: the page requests the state after the reply to its request.
        """
        self._talk(self._sample)

    def show(self, report: LastReport) -> None:
        """Push the report of a trace."""
        self._talk(self._show, report)

    def set_measured(self, command: Command, size: int) -> None:
        """Set the measured bytes of the findings with a command."""
        with self._lock:
            if self._report is not None:
                findings = tuple(
                    replace(finding, measured=size) if finding.command == command else finding
                    for finding in self._report.findings
                )
                self._report = replace(self._report, findings=findings)

    def close(self) -> None:
        """Announce that nbmem is unloaded, and end the thread."""
        try:
            self._talk(lambda: self._push(Unloaded(t_ms=now_ms())))
        finally:
            self._closed.set()
            self._awake.set()
        if self._thread is not None and os.getpid() == self._pid:
            self._thread.join(timeout=2)
            self._readings.close()

    def state(self) -> HubState:
        """Return the current state."""
        with self._lock:
            return HubState(
                cell=next(iter(self._running), None),
                samples=tuple(self._samples),
                cells=tuple(self._cells),
                report=self._report,
                processes=self._processes,
                ranks=self._ranks,
                notes=tuple(self._notes),
            )

    # --- under the lock

    def _talk(self, do: Callable[..., None], *arguments: Any) -> None:
        """Read and send under the lock, one thread at a time.

        This ensures that nothing is sent after a cell's end. A fault ends the readings and never
        affects the user's cell. A forked child has no such thread: it neither reads nor sends.
        """
        if self._closed.is_set() or os.getpid() != self._pid:
            return
        with self._lock:
            try:
                do(*arguments)
            except Exception as err:
                logger.debug("the live readings stopped", exc_info=True)
                self._give_up(err)

    def _begin(self, cell: Cell, folders: Folders, meter: PeakMeter | None) -> None:
        if not self._running:
            self._readings.begin(folders, meter)
        self._running.append(cell)
        self._awake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nbmem live", daemon=True)
            self._thread.start()

    def _end(self, cell: Cell, delta: CellDelta | None) -> None:
        if cell not in self._running:
            return
        self._running.remove(cell)
        if not self._running:
            self._awake.clear()
        self._push_ranks(cell, final=True)
        if has_figures(last := self._readings.read(cell)):
            self._push_sample(_with_peak(last, delta))
        elif self._announced is not cell:
            return
        ended = CellEnded(t_ms=now_ms(), cell=cell, delta=delta)
        if delta is not None:
            self._cells.append(ended)
        self._push(ended)

    def _end_loading(self, cell: Cell) -> None:
        if not self._running and (cards := self._readings.read_cards()):
            now = now_ms()
            self._push_sample(
                Sample(t_ms=now, cell=cell, phase=None, step=None, cards=cards, host=None)
            )
            self._push(CellEnded(t_ms=now, cell=cell, delta=None))

    def _sample(self) -> None:
        if self._samples and not self._running:
            self._samples.append(self._readings.read(self._samples[-1].cell))

    def _show(self, report: LastReport) -> None:
        self._report = report
        self._push(report)  # also for a cell that has ended: idle time may renew its report

    # --- the thread

    @entry("the live readings", on_fault=lambda _part, _err: None, lasts=True)
    def _run(self) -> None:
        while not self._closed.is_set():
            self._awake.wait()
            if not self._closed.wait(1 / self.hz):
                with suppress_warnings():
                    self._talk(self._tick)

    def _tick(self) -> None:
        if not self._running:
            return
        cell = self._running[0]
        sample = self._readings.read(cell)
        if has_figures(sample):
            self._announce(cell)
            self._push_sample(sample)
            self._push_processes()
        self._push_ranks(cell)
        for watcher in tuple(self.watchers):
            watcher(sample)

    def _announce(self, cell: Cell) -> None:
        if self._announced is not cell:
            self._announced = cell
            self._push(CellBegun(t_ms=now_ms(), cell=cell))

    def _push_ranks(self, cell: Cell, *, final: bool = False) -> None:
        """Push the ranks if they have changed.

        Ranks may write even if the notebook has no torch, since engines have their own.
        """
        if (ranks := self._readings.ranks(final=final)) is not None:
            self._announce(cell)
            self._ranks = ranks
            self._push(ranks)

    def _push_sample(self, sample: Sample) -> None:
        """Push a sample unless it equals the last one of this cell."""
        if self._samples and _content(self._samples[-1]) == _content(sample):
            return
        self._samples.append(sample)
        while self._samples[0].t_ms < sample.t_ms - KEPT_MS:
            self._samples.popleft()
        self._push(sample)

    def _push_processes(self) -> None:
        if CLOCK.monotonic() < self._processes_due:
            return
        self._processes_due = CLOCK.monotonic() + PROCESSES_S
        processes = self._readings.processes()
        if processes != self._processes:
            self._processes = processes
            self._push(Processes(t_ms=now_ms(), processes=processes))

    def _push(self, message: Push) -> None:
        self._send(encode(message))

    def _give_up(self, err: Exception) -> None:
        """End the readings in this kernel and push one note."""
        self._closed.set()
        self._awake.set()
        sentence = (
            f"The live readings stopped: {error_of(err)}. Your code and the reports "
            "are not affected. `%reload_ext nbmem` starts them again."
        )
        self._notes.append(sentence)
        try:
            self._push(Note(t_ms=now_ms(), sentence=sentence))
        except Exception:
            logger.debug("nor can the note be sent", exc_info=True)


def _with_peak(sample: Sample, delta: CellDelta | None) -> Sample:
    """Return a last sample with the peak of the cell's line in the history."""
    if delta is None or (peak := delta.peak) is None:
        return sample
    cards = (
        replace(card, peak=peak.allocated, peak_exact=peak.exact)
        if card.index == peak.device
        else card
        for card in sample.cards
    )
    return replace(sample, cards=tuple(cards))


def _content(sample: Sample) -> tuple[object, ...]:
    """Return what two samples are compared by, without time.

    Other programs' use of the host's memory is left out, too: it changes all the time.
    """
    host = sample.host and (sample.host.process, sample.host.by_category)
    return sample.cell, sample.phase, sample.step, sample.cards, host
