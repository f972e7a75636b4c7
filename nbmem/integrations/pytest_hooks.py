"""A pytest plugin that holds the GPU memory of tests to a limit.

The error names what exceeded the limit.

pytest loads it in every environment that has nbmem, so nothing else is imported until a
test needs it. `--nbmem-max-peak SIZE` is for all tests. The marker `nbmem_max_peak` and
the fixture `nbmem_trace` are for one. `--nbmem-gpu NAME` activates a virtual card where
the machine has none.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.report.analysis.peak_limit import Figure

MARKER = (
    'nbmem_max_peak(limit, which="allocated"): fail if the test holds more GPU memory than '
    '`limit` (bytes or "6GiB"), as nbmem.assert_peak does'
)
TITLE = "GPU memory (nbmem)"
"""Title of the section in pytest's output of a failed test."""
_CARD = pytest.StashKey[str]()
"""Text on the card that --nbmem-gpu activated."""


class Limit(NamedTuple):
    """The memory limit of a test.

    Attributes:
        size: Bytes.
        which: The figure that is compared with it.
        explicit: Whether the test has its own marker, and so must not pass without a card.
    """

    size: int
    which: Figure
    explicit: bool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("nbmem", TITLE)
    group.addoption(
        "--nbmem-max-peak",
        metavar="SIZE",
        help="fail each test whose allocated GPU memory goes above SIZE (6GiB), and say what held "
        "it; the marker nbmem_max_peak has a limit for one test",
    )
    group.addoption(
        "--nbmem-gpu",
        metavar="NAME",
        help="run on this virtual card (T4, 2xA100; `nbmem gpus` lists them), or with `auto` on a "
        "real one where there is one; a virtual card computes no values",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options and activate the virtual card."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("--nbmem-max-peak") is not None:
        _size(config.getoption("--nbmem-max-peak"))
    card = config.getoption("--nbmem-gpu")
    leads = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if card is not None and not leads:  # xdist's main process activates none; each worker does
        from nbmem.api import device_selection
        from nbmem.core.errors import NbmemError

        try:
            config.stash[_CARD] = device_selection.use(card).sentence
        except NbmemError as err:
            raise pytest.UsageError(f"--nbmem-gpu: {err}") from err


def pytest_unconfigure(config: pytest.Config) -> None:
    """Deactivate the virtual card."""
    if _CARD in config.stash:
        from nbmem import virtual

        virtual.deactivate()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say on which card the tests run."""
    return f"nbmem: {config.stash[_CARD]}" if _CARD in config.stash else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Trace a test that has a limit, and fail it if it exceeds the limit."""
    limit = _limit_of(item)
    if limit is None:
        return (yield)
    if not limit.explicit and "torch" not in sys.modules:
        result = yield
        _hold_counters(item, limit)
        return result
    trace = getattr(item, "funcargs", {}).get("nbmem_trace") or _trace_of(item)
    try:
        result = yield
    except BaseException as err:
        trace.stop(err)
        if trace.session is not None and trace.session.refusals:
            _explain(item, trace)
        raise
    trace.stop()
    _hold(item, trace, limit)
    return result


@pytest.fixture
def nbmem_trace(request: pytest.FixtureRequest) -> Iterator[Trace]:
    """Trace a test: `nbmem_trace.stop().report()` has its figures."""
    with _trace_of(request.node) as trace:
        yield trace


def _limit_of(item: pytest.Item) -> Limit | None:
    marker = item.get_closest_marker("nbmem_max_peak")
    if marker is not None:
        return _limit_of_marker(*marker.args, **marker.kwargs)
    size = item.config.getoption("--nbmem-max-peak")
    return None if size is None else Limit(_size(size), "allocated", explicit=False)


def _limit_of_marker(limit: int | str, which: Figure = "allocated") -> Limit:
    """Return the limit that a marker's arguments give."""
    return Limit(_size(limit), which, explicit=True)


def _size(limit: int | str) -> int:
    from nbmem.core.errors import UsageError
    from nbmem.core.units import parse_bytes

    try:
        return parse_bytes(limit) if isinstance(limit, str) else limit
    except UsageError as err:
        raise pytest.UsageError(f"nbmem-max-peak: {err}") from err


def _trace_of(item: pytest.Item) -> Trace:
    """Start a trace of a test.

    The names of the test's module are used for its tensors.
    """
    from nbmem.api.tracing import Trace

    names: Mapping[str, Any] = vars(getattr(item, "module", None) or sys.modules["__main__"])
    return Trace(item.name, stacks=True, namespace=names).start()


def _hold(item: pytest.Item, trace: Trace, limit: Limit) -> None:
    """Fail a test that exceeded its limit."""
    from nbmem.api.testing import exceeded
    from nbmem.core.errors import UsageError

    session = trace.session
    if not limit.explicit and session is not None and not session.devices:
        return  # the test used no card
    try:
        message = exceeded(trace, limit.size, which=limit.which)
    except UsageError as err:
        message = str(err)
    if message is not None:
        _explain(item, trace)
        pytest.fail(message, pytrace=False)


def _explain(item: pytest.Item, trace: Trace) -> None:
    """Add the report to the failure, without commands.

    A user cannot type them there.
    """
    from nbmem.core.runtime.fault_isolation import error_of
    from nbmem.core.runtime.interrupts import reraise_if_from_signal
    from nbmem.views.oom import without_commands
    from nbmem.views.text import render_text

    try:
        report = trace.report()
        text = render_text(replace(without_commands(report), findings=()))
    except Exception as err:  # noqa: BLE001 - it must not hide the test's own failure
        reraise_if_from_signal(err)
        text = f"The report could not be made: {error_of(err)}."
    item.add_report_section("call", TITLE, text)


def _hold_counters(item: pytest.Item, limit: Limit) -> None:
    """Check a test that imported torch itself, by torch's own counter.

    The test was the first to import torch.
    """
    if "torch" not in sys.modules:
        return
    from nbmem.core.units import format_bytes
    from nbmem.frontends.sidebar.card_reader import CardReader

    reader = CardReader()
    peaks = {card.index: reader.torchs_peak(card) for card in reader.read()}
    reader.close()
    for index, peak in peaks.items():
        if peak > limit.size:
            pytest.fail(
                f"{item.name} peaked at {format_bytes(peak)} allocated on card {index}, "
                f"{format_bytes(peak - limit.size)} above the limit of "
                f"{format_bytes(limit.size)}. It imported torch itself, so nobody saw what held "
                "it: import torch where the file begins.",
                pytrace=False,
            )
