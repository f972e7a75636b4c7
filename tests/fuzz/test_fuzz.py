"""A thousand hostile files are opened, or refused with a sentence."""

import sys
from types import ModuleType

import pytest

from tests.fuzz.run import run, table

FILES = 400
"""`make fuzz` opens thousands."""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured through /proc")
@pytest.mark.slow
def test_hostile_files_are_opened_or_refused_with_a_sentence(monkeypatch):
    # A spawned process imports `__main__`, which a shell of another test may have emptied.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    outcomes = run(range(FILES), workers=2)
    found = table(outcomes)
    assert len(outcomes) == FILES, found
    assert {one.how for one in outcomes} <= {"opened", "refused"}, found
    opened = sum(one.how == "opened" for one in outcomes)
    assert FILES / 20 < opened < FILES / 2, found  # else the files are too broken, or too whole
