"""Trace a cell or a statement, show its report, and keep the last one."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.core.files.untrusted_input import is_folder
from nbmem.core.runtime.interrupts import hold_signals
from nbmem.frontends.notebook.display import (
    FAULT,
    NEVER_RAN,
    no_report,
    out_of_memory_bundle,
    report_bundle,
    show,
    show_bundle,
    why_no_report,
)
from nbmem.frontends.notebook.engines import begin_rank, is_reported_elsewhere
from nbmem.frontends.notebook.error_boundary import error_boundary, notify, release_with_retry
from nbmem.frontends.notebook.failed_cells import is_out_of_memory
from nbmem.frontends.notebook.idle_tasks import IdleHeapWalk
from nbmem.frontends.notebook.trace_history import TraceHistory

if TYPE_CHECKING:
    from nbmem.api.rank_recording import RankFolder
    from nbmem.api.tracing import Trace
    from nbmem.capture.hooks.function_calls import FunctionCalls
    from nbmem.core.freed_memory import Freed
    from nbmem.frontends.notebook.options import CellOptions
    from nbmem.frontends.notebook.sidebar.output import CellOutput

logger = logging.getLogger("nbmem")

MAX_FREED = 1_000
"""Limit on remembered actions."""


class MemoryPeakExceededError(Exception):
    """A traced cell's peak is above its `--max-peak`.

    This is the one exception that nbmem raises into a cell.
    """


class TraceListener(Protocol):
    """Interface of an object that is notified of traces (the sidebar)."""

    def trace_begun(self, title: str, options: CellOptions) -> None:
        """Handle the start of a trace.

        A progress line may be shown in the cell until its report exists.
        """

    def trace_ended(self) -> CellOutput | None:
        """Handle the end of a trace; return the output that its report replaces.

        None if there is no output to replace.
        """

    def reported(self, trace: Trace, device: int | None) -> None:
        """Handle a trace's report that is shown."""


class Tracer:
    """The tracer of one shell: it starts and ends traces, one at a time.

    Attributes:
        last: The last finished (or opened) recording, or None.
        kept: The last traced cells, within a memory limit, for `%nbmem diff`.
        activated: Whether a virtual card was activated through this extension.
        freed: The latest results of `%nbmem free`.
        watcher: The listener that is notified of traces, or None.
        later: Continues a heap walk while the kernel is idle.
    """

    def __init__(self, shell: Any) -> None:
        self.last: Trace | None = None
        self.kept = TraceHistory()
        self.activated = False
        self.freed: deque[Freed] = deque(maxlen=MAX_FREED)
        self.watcher: TraceListener | None = None
        self.later = IdleHeapWalk(shell)
        self._shell = shell
        self._running: str | None = None
        self._writes: RankFolder | None = None
        self._begun: Trace | None = None  # the last one, even if no caller knows of it
        self._calls: FunctionCalls | None = None  # of the code that is traced

    @property
    def running(self) -> str | None:
        """Title of the running trace, or None."""
        return self._running

    def use_card(self, name: str) -> str:
        """Activate a virtual card; return the sentence to show.

        Raises:
            NbmemError: There is no such card, it cannot be used, or live tensors would be lost.
        """
        from nbmem.api import device_selection
        from nbmem.capture.torch_memory.peak_counters import watch_resets

        choice = device_selection.use(name, names=self._shell.user_ns)
        watch_resets()
        self.activated |= choice.virtual
        return choice.sentence

    def use_world(self, name: str, ranks: int, rank: int) -> str:
        """Become a rank of virtual cards; return the sentence to show.

        Raises:
            NbmemError: As for `use_card`, or there is no such world or rank.
        """
        from nbmem.api import device_selection
        from nbmem.capture.torch_memory.peak_counters import watch_resets

        choice = device_selection.use_world(name, ranks, rank=rank, names=self._shell.user_ns)
        watch_resets()
        self.activated = True
        return choice.sentence

    def begin(self, options: CellOptions, title: str) -> Trace | None:
        """Start a trace; return None if that is not possible.

        A sentence on stderr gives the reason. After an interrupt, None is returned and the caller
        that holds interrupts delivers it.
        """
        if self._running is not None:
            notify(
                f"{title} runs while {self._running} is traced, and one trace runs at a time: "
                f"its memory is in the report of {self._running}."
            )
            return None
        trace: Trace | None = None
        with hold_signals() as held, error_boundary("start the trace"):
            if options.gpu is not None:
                self.use_card(options.gpu)
            from nbmem.api import tracing

            trace = tracing.trace(
                title,
                stacks=options.stacks,
                device=options.device,
                namespace=self._shell.user_ns,
            )
            self._begun = trace
            trace.start()
            self._writes = begin_rank(trace, options.save)
            if not trace.runs and not held.came:
                trace.report()  # prints the reason
            self._running = title
            if self.watcher is not None:
                with error_boundary("show the progress line"):
                    self.watcher.trace_begun(title, options)
            if trace.runs and not held.came:
                self._calls = trace.follow_functions(self._shell.user_global_ns)
                self._shell.ast_transformers.append(self._calls)
                return trace
        if trace is not None:  # it may have begun nevertheless
            self.release_trace(trace)
        self._running = None
        if not held.came:
            notify("this cell runs untraced.")
        return None

    @staticmethod
    def mark_user_time(*, begins: bool) -> None:
        """Mark the start or the end of a traced cell's own code.

        The time outside it counts as nbmem's.
        """
        with error_boundary("tell the cell's time from nbmem's"):
            from nbmem.capture.record.recording import users_time

            users_time(begins=begins)

    def release_variables(self, error: BaseException | None = None) -> None:
        """Let the variables of the function go that the traced code called last.

        What they hold is recorded before.
        """
        calls, self._calls = self._calls, None
        if calls is not None:
            with hold_signals(), error_boundary("look who held what"):
                if calls in self._shell.ast_transformers:
                    self._shell.ast_transformers.remove(calls)
                calls.stop(error)

    def end(
        self, trace: Trace, options: CellOptions, error: BaseException | None
    ) -> MemoryPeakExceededError | None:
        """Stop a trace, save and show it.

        Returns:
            The error to fail the cell with, if its peak is above the user's limit.
        """
        with hold_signals() as held:
            exceeded = self._end(trace, options, error)
        if held.came:
            notify("interrupted; what was recorded is kept.")
        return exceeded

    def _end(
        self, trace: Trace, options: CellOptions, error: BaseException | None
    ) -> MemoryPeakExceededError | None:
        self.release_variables(error)
        over, place = self._stop(trace, error)
        self._keep(trace)
        self._save(trace, options.save, private=options.private)
        shown, exceeded, why = False, None, FAULT
        card = None if place is None else place.another()
        if (
            options.save is not None
            and is_folder(options.save)
            and is_reported_elsewhere(self._shell, trace)
        ):
            trace.discard_walk()
            return None
        with error_boundary("show the report"):
            nothing = why_no_report(trace, options.device)
            if nothing is None:
                show(
                    trace,
                    widget=options.widget,
                    display_id=None if place is None else place.id,
                    card_id=None if card is None else card.id,
                )
                shown = True
                if options.max_peak is not None:
                    exceeded = _exceeded(trace, options.max_peak, options.device)
            elif place is None:
                notify(nothing)
            else:
                why = nothing
        if shown and self.watcher is not None:
            with error_boundary("tell the sidebar"):
                self.watcher.reported(trace, options.device)
        if not shown and place is not None:
            show_bundle(no_report(trace, why), display_id=place.id, update=True)
        if over or not shown or place is None or card is None or not self.later.can_continue:
            trace.discard_walk()
        else:
            renew = partial(self._renew, trace, options, place, card)
            self.later.continue_when_idle(trace, renew)
        return exceeded

    def _save(self, trace: Trace, place: str | None, *, private: bool) -> None:
        """Save the session to the user's file, or to a folder of ranks.

        Does nothing if the user named neither.
        """
        writes, self._writes = self._writes, None
        with error_boundary("save the session"):
            if writes is not None:
                writes.save()
            elif place is not None:
                notify(f"the session is in {trace.save(place, private=private)}.")

    def release_trace(self, trace: Trace) -> None:
        """Release everything of a trace, even where `end` has failed."""
        self._running = None
        self.release_variables()
        with hold_signals():
            if trace.session is None or trace.runs:  # not a walk that is left for later
                trace.stop()
            if trace is self._begun and trace.session is not None:
                self._keep(trace)
        if self.watcher is not None:
            release_with_retry("end the progress line", self.watcher.trace_ended)

    def _keep(self, trace: Trace) -> None:
        """Make a trace the last one, which `%nbmem report` and `diff` show."""
        if self.last is not trace:
            self.last = trace
            self.kept.add(trace)

    def release_unended(self) -> None:
        """End a trace that was begun and never ended.

        An interrupt can come before any caller knows of the trace.
        """
        if self._begun is not None and self._running is not None:
            self.release_trace(self._begun)

    def drop(self, trace: Trace, error: BaseException | None) -> None:
        """Stop a trace that has nothing to show: its cell never ran."""
        self._begun = None
        self.release_variables()
        _, place = self._stop(trace, error)
        trace.discard_walk()
        if place is not None:
            show_bundle(no_report(trace, NEVER_RAN), display_id=place.id, update=True)

    def _stop(self, trace: Trace, error: BaseException | None) -> tuple[bool, CellOutput | None]:
        """Stop a trace; return if its heap walk is complete, and its output.

        The output is the status line that the report replaces, or None.
        """
        self._running = None
        over, place, enough = True, None, None
        with error_boundary("know who waits"):
            enough = self.later.time_limit(out_of_memory=is_out_of_memory(error))
        with error_boundary("stop the trace"):
            over = trace.end(error, enough)
        if self.watcher is not None:
            place = release_with_retry("end the progress line", self.watcher.trace_ended)
        return over, place

    def _renew(
        self, trace: Trace, options: CellOptions, place: CellOutput, card: CellOutput
    ) -> None:
        """Show the report again, now that more of it has names.

        So is the explanation of an out-of-memory error, whose advice would contradict it.
        """
        explained = out_of_memory_bundle(trace, options.device, widget=options.widget)
        if explained is not None:
            card.update(explained)
        place.update(report_bundle(trace, options.device, widget=options.widget))
        if self.watcher is not None:
            self.watcher.reported(trace, options.device)


def _exceeded(trace: Trace, limit: int, device: int | None) -> MemoryPeakExceededError | None:
    from nbmem.report.analysis.peak_limit import over_limit

    if trace.session is None:
        return None
    sentences = over_limit(trace.session, limit, what=trace.name, device=device)
    return None if sentences is None else MemoryPeakExceededError(sentences)
