"""A program without IPython: the names are those of `__main__`."""

import sys
from types import ModuleType

import pytest


@pytest.fixture
def program(monkeypatch):
    """The names of a program, which has no shell and no traceback."""
    shells = sys.modules.get("IPython.core.interactiveshell")
    if shells is not None:
        shells.InteractiveShell.clear_instance()
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        monkeypatch.delattr(sys, name, raising=False)
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    yield vars(main)
    vars(main).clear()
