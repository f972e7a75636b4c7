"""Fixtures: a real InteractiveShell over a fake recorder."""

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbmem.api
from nbmem.capture.hooks.function_calls import FunctionCalls
from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.files.atomic_write import write_text
from nbmem.core.session.cell_delta import CellDelta, CellPeak
from nbmem.core.units import GIB
from nbmem.report.analysis import peak_limit as limit


class FakeTrace:
    """Fake of nbmem.api.tracing.Trace."""

    def __init__(self, recorder, name, **options):
        self.recorder = recorder
        self.name = name
        self.options = options
        self.error = None
        self.session = recorder
        self.cells, self.cell = (), None
        self.stopped = 0

    def release_reports(self):
        """Do nothing: a fake trace has no reports."""

    def start(self):
        self.recorder.calls.append(("start", self.name))
        if self.recorder.broken:
            raise RuntimeError("the recorder is broken")
        return self

    def end(self, error=None, enough=None):
        if not self.stopped:
            self.recorder.calls.append(("stop", self.name))
            self.error = None if error is None else type(error).__name__
            self.stopped += 1
        return True

    def discard_walk(self):
        pass

    def follow_functions(self, variables):
        return FunctionCalls(variables, self.record_before_return)

    def record_before_return(self, call):
        call.frame = None

    interrupted = False

    @property
    def runs(self):
        return ("start", self.name) in self.recorder.calls and not self.stopped

    def stop(self, error=None):
        self.end(error)
        return self

    def report(self, device=None):
        if self.recorder.nothing:
            raise UsageError("Nothing was recorded: torch has used no card in this cell.")
        at = SimpleNamespace(phase="forward", step=1)
        peak = SimpleNamespace(at=at, allocated=self.recorder.peak)
        return SimpleNamespace(title=self.name, peak=peak, ooms=())

    def cell_with_peak(self):
        if self.cell is None or self.recorder.nothing:
            return self.cell
        peak = CellPeak(device=0, allocated=self.recorder.peak, exact=True)
        return replace(self.cell, peak=peak)

    def save(self, path, *, private=False):
        return write_text(path, f"{self.name}{' in private' * private}")

    def export(self, form, path, device=None, *, private=False):
        return write_text(path, f"{form} of {self.name} on {device}{' in private' * private}")

    def _repr_mimebundle_(self, **_kw):
        return {
            "text/plain": f"<report of {self.name}>",
            "text/html": f"<b>report of {self.name}</b>",
        }


class FakeRecorder:
    """Fake of nbmem.api.tracing that records its calls."""

    def __init__(self):
        self.calls = []
        self.traces = []
        self.peak = 3 * GIB
        self.broken = False
        self.nothing = False
        self.devices = self.stacks = self.names = self.spans = ()  # an empty session

    def trace(self, name="trace", **options):
        self.traces.append(FakeTrace(self, name, **options))
        return self.traces[-1]

    @contextmanager
    def phase(self, name):
        self.calls.append(("phase", name))
        yield

    def open(self, path, *, max_size=None):
        if not Path(path).exists():
            raise FileFormatError(f"There is no file {path}. Check the path.")
        return FakeTrace(self, Path(path).read_text())


def over_limit(session, limit, *, what, device):
    """Fake of peak_limit.over_limit, with the recorder as session."""
    return f"{what} peaked at {session.peak} B" if session.peak > limit else None


class FakeReader:
    """Fake of nbmem.capture.record.cell_deltas.DeltaReader."""

    def before(self):
        pass

    def before_torch(self, begun_ns):
        pass

    def after(self, label, error, execution_count=None, peak=None):
        return CellDelta(
            label=label,
            execution_count=execution_count,
            allocated_before=0,
            allocated_after=512,
            reserved_before=0,
            reserved_after=2 << 20,
            peak=peak,
            process=None,
            duration_ns=1_000_000,
            error=error,
        )

    def keep_of_host(self, rows, trace):
        pass


@pytest.fixture
def recorder(monkeypatch):
    fake = FakeRecorder()
    api = ModuleType("nbmem.api.tracing")
    api.trace, api.phase, api.open = fake.trace, fake.phase, fake.open
    monkeypatch.setitem(sys.modules, "nbmem.api.tracing", api)
    monkeypatch.setattr(nbmem.api, "tracing", api, raising=False)
    deltas = ModuleType("nbmem.capture.record.cell_deltas")
    deltas.DeltaReader = FakeReader
    monkeypatch.setitem(sys.modules, "nbmem.capture.record.cell_deltas", deltas)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(limit, "over_limit", over_limit)
    return fake


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    yield shell
    nbmem.unload_ipython_extension(shell)
    InteractiveShell.clear_instance()


@pytest.fixture
def run(shell, recorder, capsys):
    """Run cells with the extension loaded; returns the result with what was written."""
    nbmem.load_ipython_extension(shell)

    def run_cell(code, **options):
        capsys.readouterr()
        result = shell.run_cell(code, **{"store_history": True, **options})
        written = capsys.readouterr()
        return SimpleNamespace(
            success=result.success,
            error=result.error_before_exec or result.error_in_exec,
            value=result.result,
            out=written.out,
            err=written.err,
        )

    return run_cell
