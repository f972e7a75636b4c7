"""Traces a cell or a statement, shows its report, and keeps the last one."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.core.errors import NbmemError
from nbmem.ipython.guest import guest, say
from nbmem.ipython.kept import KeptTraces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.api import Trace
    from nbmem.core.freed import Freed
    from nbmem.ipython.options import CellOptions

MAX_FREED = 1_000
"""Actions that are remembered."""


class MemoryPeakExceededError(Exception):
    """A cell's peak is above its `--max-peak`: the one exception that nbmem raises into a cell."""


class Watcher(Protocol):
    """Who follows the traces (the sidebar, where the shell has a kernel)."""

    def trace_begun(self, title: str, options: CellOptions) -> None:
        """A trace has begun; a line may be shown in its cell until its report is there."""

    def trace_ended(self) -> str | None:
        """It has ended; returns the display id of that line, if there is one to replace."""

    def reported(self, trace: Trace, device: int | None) -> None:
        """Its report is shown."""


class Tracer:
    """Starts and ends traces, one at a time.

    Attributes:
        last: The last finished (or opened) recording, or None.
        kept: The last traced cells, as many as a bound allows, for `%nbmem diff`.
        activated: Whether a virtual card was put in through this extension.
        freed: What `%nbmem free` did, the latest.
        watcher: Who follows the traces, if anybody.
    """

    def __init__(self, shell: Any) -> None:
        self.last: Trace | None = None
        self.kept = KeptTraces()
        self.activated = False
        self.freed: deque[Freed] = deque(maxlen=MAX_FREED)
        self.watcher: Watcher | None = None
        self._shell = shell
        self._running: str | None = None

    @property
    def running(self) -> str | None:
        """Title of the trace that runs now, or None."""
        return self._running

    def use_card(self, name: str) -> str:
        """Put a virtual card in; returns the sentence to show.

        Raises:
            NbmemError: There is no such card, or it cannot be used.
        """
        from nbmem import devices

        choice = devices.use(name)
        self.activated |= choice.virtual
        return choice.sentence

    def begin(self, options: CellOptions, title: str) -> Trace | None:
        """Start a trace; None (and a sentence on stderr) if that is not possible."""
        if self._running is not None:
            say(
                f"{title} runs while {self._running} is traced, and one trace runs at a time: "
                f"its memory is in the report of {self._running}."
            )
            return None
        with guest("start the trace"):
            if options.gpu is not None:
                self.use_card(options.gpu)
            from nbmem import api

            trace = api.trace(
                title,
                stacks=options.stacks,
                device=options.device,
                namespace=self._shell.user_ns,
            )
            trace.start()
            self._running = title
            if self.watcher is not None:
                with guest("show the progress line"):
                    self.watcher.trace_begun(title, options)
            return trace
        say("this cell runs untraced.")
        return None

    def end(
        self, trace: Trace, options: CellOptions, error: BaseException | None
    ) -> MemoryPeakExceededError | None:
        """Stop a trace, save and show it.

        Returns:
            The error to fail the cell with, if its peak is above the limit that the user set.
        """
        line = self._stop(trace, error)
        self.last = trace
        self.kept.add(trace)
        if options.save is not None:
            with guest("save the session"):
                say(f"the session is in {trace.save(options.save)}.")
        with guest("show the report"):
            trace.report(options.device)
            show(trace, widget=options.widget, display_id=line)
            line = None
            if self.watcher is not None:
                with guest("tell the sidebar"):
                    self.watcher.reported(trace, options.device)
            if options.max_peak is not None:
                return _exceeded(trace, options.max_peak, options.device)
        if line is not None:
            show_bundle(_no_report(trace), display_id=line, update=True)
        return None

    def drop(self, trace: Trace, error: BaseException | None) -> None:
        """Stop a trace that has nothing to show: its cell never ran."""
        line = self._stop(trace, error)
        if line is not None:
            show_bundle(_no_report(trace), display_id=line, update=True)

    def _stop(self, trace: Trace, error: BaseException | None) -> str | None:
        """Stop a trace; returns the display id of the line that its report is to replace."""
        self._running = None
        line = None
        with guest("stop the trace"):
            trace.end(error, self._enough())
        if self.watcher is not None:
            with guest("end the progress line"):
                line = self.watcher.trace_ended()
        return line


def show(
    trace: Trace,
    *,
    device: int | None = None,
    widget: bool = True,
    display_id: str | None = None,
) -> None:
    """Show a recording's report in the cell's output: as HTML and as text, the front end picks.

    Args:
        trace: The recording.
        device: CUDA ordinal of the card; None for the one with the most events.
        widget: Whether to show more than the plain text.
        display_id: Of the output that the report replaces; None for a new one.
    """
    bundles = [(trace._repr_mimebundle_(device=device, ooms=False), display_id)]
    with suppress(NbmemError):  # nothing to report of, as its bundle says
        ooms = trace.report(device).ooms
        if ooms:
            from nbmem.views.bundle import oom_bundle

            bundles.insert(0, (oom_bundle(ooms), None))
    for bundle, place in bundles:
        shown = bundle if widget else {"text/plain": bundle["text/plain"]}
        show_bundle(shown, display_id=place, update=place is not None)


_collecting: ContextVar[list[dict[str, Any]] | None] = ContextVar("nbmem_bundles", default=None)


@contextmanager
def collected() -> Iterator[list[dict[str, Any]]]:
    """Collect what this thread would show, for who asked from outside the notebook."""
    bundles: list[dict[str, Any]] = []
    token = _collecting.set(bundles)
    try:
        yield bundles
    finally:
        _collecting.reset(token)


def show_bundle(
    bundle: dict[str, Any], *, display_id: str | None = None, update: bool = False
) -> None:
    """Show a MIME bundle in the cell's output (a terminal prints its text).

    Args:
        bundle: What to show.
        display_id: A name of the output, by which it can be replaced.
        update: Replace the output of that name.
    """
    from IPython.display import display

    collecting = _collecting.get()
    if collecting is not None:
        collecting.append(bundle)
    elif display_id is None:
        display(bundle, raw=True)
    else:
        display(bundle, raw=True, display_id=display_id, update=update)


def _no_report(trace: Trace) -> dict[str, str]:
    return {"text/plain": f"{trace.name}: no report; the message beside it says why."}


def _exceeded(trace: Trace, limit: int, device: int | None) -> MemoryPeakExceededError | None:
    from nbmem.analysis.limit import over_limit

    if trace.session is None:
        return None
    sentences = over_limit(trace.session, limit, what=trace.name, device=device)
    return None if sentences is None else MemoryPeakExceededError(sentences)
