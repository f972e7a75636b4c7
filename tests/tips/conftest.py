"""Fixtures: a virtual card, and isolated settings."""

import gc

import pytest

from nbmem import virtual
from tests.tips.measure import program_runner


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """Isolate a test from the user's settings."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "config"))


@pytest.fixture
def run():
    """Provide run(code, ...), which returns (trace, namespace)."""
    pytest.importorskip("torch", reason="the programs are torch programs")
    with program_runner() as go:
        yield go


@pytest.fixture
def report_of(tmp_path):
    """Provide report_of(code), which runs it as a script on a T4: its lines can be read."""
    pytest.importorskip("torch", reason="the programs are torch programs")
    import nbmem.api.tracing as nbmem

    def run(code):
        path = tmp_path / "train.py"
        path.write_text(f"import torch\nfrom torch import nn\n{code}", encoding="utf-8")
        names = {"__name__": "__main__"}
        with virtual.activated("T4"):
            with nbmem.trace("cell", namespace=names) as trace:
                exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
            report = trace.report()
            names.clear()
            gc.collect()
        return report

    return run
