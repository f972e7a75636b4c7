"""Pytest plugin: each test in its own process, on its own card.

Forked before anything asks for a card, so that a test chooses which, starts with an empty one, and
loses nothing but itself when it crashes. Tests of a file that share a kernel share a process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from nbmem import virtual
from tests.oracle.card import REAL, OnlyVirtualError, put_in
from tests.oracle.only_virtual import reason

PATIENCE_S = 300
ENDS_S = 10
"""So long a process may take itself apart."""
TOGETHER = ("tests/sidebar/test_kernel.py", "tests/browser/", "tests/faults/test_capture.py")
"""Files whose tests share something that takes long to start."""


SLOW = (
    "torch._dynamo",
    "torch._inductor",
    "torch.optim",
    "nbmem.api.tracing",
    "nbmem.report.analysis",
    "IPython",
)
"""Modules that nearly every test imports: seconds, if each process does it again."""


class ProcessPerTest:
    """Run tests in child processes and log their reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.reports: dict[str, list[dict[str, Any]]] = {}

    @staticmethod
    def pytest_collection_finish() -> None:
        for name in SLOW:
            importlib.import_module(name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: Any) -> bool:
        del nextitem
        if item.nodeid not in self.reports:
            self._run(_group(item))
        hook = self.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in self.reports.pop(item.nodeid, ()):
            report = hook.pytest_report_from_serializable(config=self.config, data=data)
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)  # JSON knows no tuples
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, items: list[pytest.Item]) -> None:
        def child(write: Callable[[bytes], object]) -> None:
            for item, following in zip(items, [*items[1:], None], strict=True):
                for report in runtestprotocol(item, nextitem=following, log=False):
                    data = self.config.hook.pytest_report_to_serializable(
                        config=self.config, report=report
                    )
                    write(json.dumps([item.nodeid, data], default=str).encode() + b"\n")

        lines, end = in_a_child(child, PATIENCE_S * len(items))
        for line in lines:
            nodeid, data = json.loads(line)
            self.reports.setdefault(nodeid, []).append(data)
        for item in items:
            if item.nodeid not in self.reports:
                self.reports[item.nodeid] = [self._lost(item, end)]

    def _lost(self, item: pytest.Item, end: str) -> dict[str, Any]:
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"its process {end}", "call"
        )
        data: dict[str, Any] = self.config.hook.pytest_report_to_serializable(
            config=self.config, report=report
        )
        return data


def _group(item: pytest.Item) -> list[pytest.Item]:
    """Return the item, with those of its file that go together."""
    if not item.nodeid.startswith(TOGETHER):
        return [item]
    return [other for other in item.session.items if other.path == item.path]


def in_a_child(work: Callable[[Callable[[bytes], object]], None], patience: float) -> Any:
    """Run `work` in a forked process; return its lines and its end."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:
            os.close(read)
            os.setpgid(0, 0)
            os.environ["STANDIN_STATE"] = str(Path(folder, "state"))
            try:
                with os.fdopen(write, "wb", buffering=0) as pipe:
                    work(pipe.write)
            finally:  # Nothing of the parent's may go on here.
                os._exit(0)
        os.close(write)
        content = _all(read, time.monotonic() + patience)
        os.close(read)
        end = _ended(child, ENDS_S)
        _kill_group(child)
    return content.splitlines(), end


def _all(read: int, until: float) -> bytes:
    content = b""
    while (left := until - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            piece = os.read(read, 1 << 16)
            if not piece:
                break
            content += piece
    return content[: content.rfind(b"\n") + 1]


def _ended(child: int, patience: float) -> str:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            number = os.waitstatus_to_exitcode(status)
            return f"was ended by signal {-number}" if number < 0 else f"ended with {number}"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "did not end in time"


def _kill_group(child: int) -> None:
    """Kill the processes that the test has left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def pytest_configure(config: pytest.Config) -> None:
    put_in(virtual)  # by pytest's own finder the modules of its plugins pass sitecustomize by
    config.pluginmanager.register(ProcessPerTest(config), "apart")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if why := reason(item.nodeid):
            item.add_marker(pytest.mark.skip(reason=f"only the virtual card: {why}"))
        if item.get_closest_marker("clock") and not os.environ.get(REAL):
            item.add_marker(pytest.mark.skip(reason="kernels take no time on the oracle"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    if call.excinfo is not None and call.excinfo.errisinstance(OnlyVirtualError):
        try:
            pytest.skip(f"only the virtual card: {call.excinfo.value}")
        except pytest.skip.Exception:
            call.excinfo = pytest.ExceptionInfo.from_current()
    del item
    return (yield)
