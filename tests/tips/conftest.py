"""A virtual card for programs, and settings that are nobody's."""

import pytest

from tests.tips.measure import running


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """No test reads or writes the settings of whoever runs it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "config"))


@pytest.fixture
def run():
    """`run(code, before=..., card=..., conf=..., stacks=...)` gives (trace, namespace)."""
    pytest.importorskip("torch", reason="the programs are torch programs")
    with running() as go:
        yield go
