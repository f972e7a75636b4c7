"""Fixtures of a program without IPython, with names in `__main__`."""

import sys
from types import ModuleType

import pytest


@pytest.fixture
def program(monkeypatch):
    """Return the names of a program without shell or traceback."""
    shells = sys.modules.get("IPython.core.interactiveshell")
    if shells is not None:
        shells.InteractiveShell.clear_instance()
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        monkeypatch.delattr(sys, name, raising=False)
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    yield vars(main)
    vars(main).clear()
