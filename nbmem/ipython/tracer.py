"""Traces a cell or a statement, shows its report, and keeps the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.units import format_bytes
from nbmem.ipython.guest import guest, say

if TYPE_CHECKING:
    from nbmem.api import Trace
    from nbmem.ipython.options import CellOptions
    from nbmem.report import Report


class MemoryPeakExceededError(Exception):
    """A cell's peak is above its `--max-peak`: the one exception that nbmem raises into a cell."""


class Tracer:
    """Starts and ends traces, one at a time.

    Attributes:
        last: The last finished (or opened) recording, or None.
        activated: Whether a virtual card was put in through this extension.
    """

    def __init__(self, shell: Any) -> None:
        self.last: Trace | None = None
        self.activated = False
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
        self.drop(trace, error)
        self.last = trace
        if options.save is not None:
            with guest("save the session"):
                say(f"the session is in {trace.save(options.save)}.")
        with guest("show the report"):
            report = trace.report(options.device)
            show(trace, widget=options.widget)
            if options.max_peak is not None and report.peak.allocated > options.max_peak:
                return _exceeded(report, options.max_peak)
        return None

    def drop(self, trace: Trace, error: BaseException | None) -> None:
        """Stop a trace that has nothing to show: its cell never ran."""
        self._running = None
        with guest("stop the trace"):
            trace.stop(error)


def show(trace: Trace, *, widget: bool = True) -> None:
    """Show a recording's report in the cell's output: as HTML and as text, the front end picks."""
    bundle = trace._repr_mimebundle_()
    if not widget:
        bundle = {"text/plain": bundle["text/plain"]}
    show_bundle(bundle)


def show_bundle(bundle: dict[str, Any]) -> None:
    """Show a MIME bundle in the cell's output (a terminal prints its text)."""
    from IPython.display import display

    display(bundle, raw=True)


def _exceeded(report: Report, limit: int) -> MemoryPeakExceededError:
    at = report.peak.at
    step = "" if at.step is None else f", step {at.step}"
    where = f" (in {at.phase}{step})" if at.phase else ""
    over = format_bytes(report.peak.allocated - limit)
    return MemoryPeakExceededError(
        f"{report.title} peaked at {format_bytes(report.peak.allocated)} allocated{where}, "
        f"{over} above its --max-peak of {format_bytes(limit)}. "
        "The report above names what was held; lower it or raise the limit."
    )
