"""Limits on a test's peak memory, and diffs between two runs.

A test's peak is what the card held, including what earlier tests left. The message gives those
bytes and does not subtract them, or a shared model would count only in the first test that uses it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from nbmem.api.tracing import Trace, open, running_recorder  # noqa: A004 - nbmem's own
from nbmem.core.errors import UsageError
from nbmem.core.units import parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.session import Session
    from nbmem.report.analysis.compare import Comparison
    from nbmem.report.analysis.peak_limit import Figure

_P = ParamSpec("_P")
_R = TypeVar("_R")


class assert_peak:  # noqa: N801 - used as a word: with nbmem.assert_peak("6GiB"):
    """A check that fails with AssertionError above a memory limit.

    The error names what exceeded the limit. Use it as a context manager (`with
    nbmem.assert_peak("6GiB"):`) or a decorator (`@nbmem.assert_peak("6GiB")`), in pytest and
    elsewhere. It works on a real card or a virtual one. Exceptions inside pass through unchanged.
    It may be used inside a trace or another assertion.

    Args:
        limit: Bytes, or text such as "6GiB".
        which: "allocated", "reserved", "active", "requested" or "process".
        device: CUDA ordinal of the one card to watch; None for every card that is used.
        stacks: Name the lines that allocated (dearer).

    Raises:
        AssertionError: At the end of the block: more was held than the limit.
        UsageError: The limit cannot be read, or there is no card that could be watched.
    """

    def __init__(
        self,
        limit: int | str,
        *,
        which: Figure = "allocated",
        device: int | None = None,
        stacks: bool = True,
    ) -> None:
        from nbmem.report.analysis.peak_limit import FIGURES

        if which not in FIGURES:
            raise UsageError(
                f"{which!r} is no figure with a peak. There are: {', '.join(FIGURES)}."
            )
        self.limit = parse_bytes(limit) if isinstance(limit, str) else limit
        self.which = which
        self.device = device
        self.stacks = stacks
        self._trace = Trace("the block")

    def __enter__(self) -> Trace:
        self._trace = Trace(self._trace.name, stacks=self.stacks, device=self.device)
        return self._trace.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        trace = self._trace.stop(error)
        if error is not None:
            return
        message = exceeded(trace, self.limit, which=self.which, device=self.device)
        if message is not None:
            raise AssertionError(message)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Decorate a function so that every call is held to the limit."""

        def fresh() -> assert_peak:
            guard = assert_peak(
                self.limit, which=self.which, device=self.device, stacks=self.stacks
            )
            guard._trace = Trace(function.__name__)
            return guard

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                __tracebackhide__ = True
                with fresh():
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            __tracebackhide__ = True
            with fresh():
                return function(*args, **kwargs)

        return called


def exceeded(
    trace: Trace, limit: int, *, which: Figure = "allocated", device: int | None = None
) -> str | None:
    """Describe what went above a limit in an ended trace, or None.

    Args:
        trace: The trace; one inside another is treated as a block of the outer one.
        limit: Limit in bytes.
        which: As for `assert_peak`, and so is `device`.
        device: CUDA ordinal of the one card to check; None for all.

    Raises:
        UsageError: Nobody knows the figure, or there is no card at all.
    """
    from nbmem.report.analysis.peak_limit import over_limit

    session, block = trace.session, None
    recorder = running_recorder()
    if session is None and recorder is not None:  # inside another trace: a block of it
        session = recorder.so_far()
        block = next(span for span in reversed(session.spans) if span.kind == "block")
    if session is None:
        return None
    if not session.devices:
        _check_card(session)
    return over_limit(session, limit, what=trace.name, which=which, device=device, within=block)


def _check_card(session: Session) -> None:
    """Raise without a card: a test that cannot fail must not pass."""
    from nbmem.capture.torch_cuda import loaded_torch

    torch: Any = loaded_torch()
    if torch is None or not torch.cuda.is_available():
        why = f" ({session.notes[0]})" if session.notes else ""
        raise UsageError(
            "assert_peak found no card, so nothing could go above the limit"
            f"{why}. Run on a machine with one, or activate a virtual card before: "
            'nbmem.virtual.activate("H100").'
        )


class Diff:
    """A comparison of two recordings.

    A notebook shows it as a table, `print` as text.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __str__(self) -> str:
        from nbmem.views.comparison import render_comparison

        return render_comparison(self.comparison)

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        from nbmem.views.comparison import render_comparison_html

        return {"text/plain": str(self), "text/html": render_comparison_html(self.comparison)}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON, with all figures in bytes."""
        from nbmem.views.comparison import comparison_json

        return comparison_json(self.comparison)


def diff(
    a: Trace | str | Path,
    b: Trace | str | Path,
    *,
    steps: tuple[int, int] | None = None,
    max_size: int | str | None = None,
) -> Diff:
    """Compare categories, holders and lines of two recordings.

    The largest change comes first.

    Args:
        a: A trace, or the file of a session or of a snapshot that torch wrote.
        b: A second trace or file; it may be the first trace if `steps` are given.
        steps: One step of each to compare, instead of the whole recordings.
        max_size: Limit on a file's size, as for `nbmem.open`.

    Raises:
        NbmemError: A side cannot be read, used no card, or has no such step.
    """
    from nbmem.report.analysis.compare import compare, summarize_side

    traces = [one if isinstance(one, Trace) else open(one, max_size=max_size) for one in (a, b)]
    names = [trace.name for trace in traces]
    if names[0] == names[1] and a != b:  # one script, recorded twice
        names = [
            name if isinstance(one, Trace) else PurePath(one).name
            for name, one in zip(names, (a, b), strict=True)
        ]
    sides = []
    for at, (trace, name) in enumerate(zip(traces, names, strict=True)):
        step = None if steps is None else steps[at]
        label = name if step is None else f"{name}, step {step}"
        sides.append(summarize_side(trace._finished(), label=label, step=step))  # noqa: SLF001 - nbmem's own
    return Diff(compare(*sides))
