"""Traces a cell or a statement, shows its report, and keeps the last one."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.core.errors import UsageError
from nbmem.core.interrupts import held_back
from nbmem.ipython.guest import guest, insist, say
from nbmem.ipython.kept import KeptTraces
from nbmem.ipython.later import Later

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.api import Trace
    from nbmem.core.freed import Freed
    from nbmem.ipython.live.output import Output
    from nbmem.ipython.options import CellOptions

logger = logging.getLogger("nbmem")

MAX_FREED = 1_000
"""Actions that are remembered."""


class MemoryPeakExceededError(Exception):
    """A cell's peak is above its `--max-peak`: the one exception that nbmem raises into a cell."""


class Watcher(Protocol):
    """Who follows the traces (the sidebar, where the shell has a kernel)."""

    def trace_begun(self, title: str, options: CellOptions) -> None:
        """A trace has begun; a line may be shown in its cell until its report is there."""

    def trace_ended(self) -> Output | None:
        """It has ended; returns where that line stands, if there is one to replace."""

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
        later: Goes on with a look when nobody waits.
    """

    def __init__(self, shell: Any) -> None:
        self.last: Trace | None = None
        self.kept = KeptTraces()
        self.activated = False
        self.freed: deque[Freed] = deque(maxlen=MAX_FREED)
        self.watcher: Watcher | None = None
        self.later = Later(shell)
        self._shell = shell
        self._running: str | None = None
        self._begun: Trace | None = None  # the last one, whoever else knows of it

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
        trace: Trace | None = None
        with held_back() as held, guest("start the trace"):
            if options.gpu is not None:
                self.use_card(options.gpu)
            from nbmem import api

            trace = api.trace(
                title,
                stacks=options.stacks,
                device=options.device,
                namespace=self._shell.user_ns,
            )
            self._begun = trace
            trace.start()
            if not trace.runs and not held.came:
                trace.report()  # says why
            self._running = title
            if self.watcher is not None:
                with guest("show the progress line"):
                    self.watcher.trace_begun(title, options)
            if trace.runs and not held.came:
                return trace
        if trace is not None:  # it may have begun all the same
            self.let_go(trace)
        self._running = None
        say("interrupted: this cell runs untraced." if held.came else "this cell runs untraced.")
        return None

    def end(
        self, trace: Trace, options: CellOptions, error: BaseException | None
    ) -> MemoryPeakExceededError | None:
        """Stop a trace, save and show it.

        Returns:
            The error to fail the cell with, if its peak is above the limit that the user set.
        """
        with held_back() as held:
            exceeded = self._end(trace, options, error)
        if held.came:
            say("interrupted; what was recorded is kept.")
        return exceeded

    def _end(
        self, trace: Trace, options: CellOptions, error: BaseException | None
    ) -> MemoryPeakExceededError | None:
        over, place = self._stop(trace, error)
        self.last = trace
        self.kept.add(trace)
        if options.save is not None:
            with guest("save the session"):
                say(f"the session is in {trace.save(options.save)}.")
        shown, exceeded = False, None
        with guest("show the report"):
            readable(trace, options.device)
            show(trace, widget=options.widget, display_id=None if place is None else place.id)
            shown = True
            if options.max_peak is not None:
                exceeded = _exceeded(trace, options.max_peak, options.device)
        if shown and self.watcher is not None:
            with guest("tell the sidebar"):
                self.watcher.reported(trace, options.device)
        if not shown and place is not None:
            show_bundle(_no_report(trace), display_id=place.id, update=True)
        if over or not shown or place is None or not self.later.possible:
            trace.look_no_more()
        else:
            self.later.go_on(trace, partial(self._renew, trace, options, place))
        return exceeded

    def let_go(self, trace: Trace) -> None:
        """Where `end` has failed: nothing of the trace stays in."""
        self._running = None
        with held_back():
            trace.stop()
        if self.watcher is not None:
            insist("end the progress line", self.watcher.trace_ended)

    def let_go_of_the_lost(self) -> None:
        """End what was begun and never ended, where an interrupt came before anybody knew of it."""
        if self._begun is not None and self._running is not None:
            self.let_go(self._begun)

    def drop(self, trace: Trace, error: BaseException | None) -> None:
        """Stop a trace that has nothing to show: its cell never ran."""
        _, place = self._stop(trace, error)
        trace.look_no_more()
        if place is not None:
            show_bundle(_no_report(trace), display_id=place.id, update=True)

    def _stop(self, trace: Trace, error: BaseException | None) -> tuple[bool, Output | None]:
        """Stop a trace; returns whether it was looked to the end, and what its report replaces."""
        self._running = None
        over, place, enough = True, None, None
        with guest("know who waits"):
            enough = self.later.enough()
        with guest("stop the trace"):
            over = trace.end(error, enough)
        if self.watcher is not None:
            place = insist("end the progress line", self.watcher.trace_ended)
        return over, place

    def _renew(self, trace: Trace, options: CellOptions, place: Output) -> None:
        """Show the report anew: more of it has names now."""
        place.update(bundle_of(trace, options.device, widget=options.widget))
        if self.watcher is not None:
            self.watcher.reported(trace, options.device)


def readable(trace: Trace, device: int | None) -> None:
    """Raise the one sentence why there is nothing to show; a fault is said by what is shown.

    Raises:
        UsageError: The recording has no such card, or none at all.
    """
    try:
        trace.report(device)
    except UsageError:
        raise
    except Exception:
        logger.debug("the report cannot be made", exc_info=True)


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
        device: CUDA ordinal of the card; None for the one that held the most.
        widget: Whether to show more than the plain text.
        display_id: Of the output that the report replaces; None for a new one.
    """
    bundles = [(bundle_of(trace, device, widget=widget), display_id)]
    with suppress(Exception):  # nothing to report of, or a ledger that fails: its bundle says so
        ooms = trace.report(device).ooms
        if ooms:
            from nbmem.views.bundle import oom_bundle

            bundles.insert(0, (_forms(oom_bundle(ooms), widget=widget), None))
    for bundle, place in bundles:
        show_bundle(bundle, display_id=place, update=place is not None)


def bundle_of(trace: Trace, device: int | None, *, widget: bool) -> dict[str, Any]:
    """A recording's report as an output; an out-of-memory error has an output of its own."""
    return _forms(trace._repr_mimebundle_(device=device, ooms=False), widget=widget)


def _forms(bundle: dict[str, Any], *, widget: bool) -> dict[str, Any]:
    return bundle if widget else {"text/plain": bundle["text/plain"]}


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
