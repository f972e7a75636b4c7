"""Fixtures: a virtual card, and isolated settings."""

import pytest

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
