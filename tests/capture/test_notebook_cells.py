"""Cells that a line of notebook code belongs to."""

import linecache
import sys
from types import SimpleNamespace

import pytest

from nbmem.capture.interpreter.notebook_cells import files_of_cells, lines_of, number_cell_files
from nbmem.core.session.events import Frame
from nbmem.report.analysis.source_lines import users_line

CELL = "/tmp/ipykernel_77/123.py"
STACK = (Frame(CELL, 9, "step"), Frame("/home/x/train.py", 1, "<module>"))


@pytest.fixture
def kernel(monkeypatch):
    """Fake the compiler's table of cells of IPython."""
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={CELL: 2}))
    module = SimpleNamespace(InteractiveShell=SimpleNamespace(_instance=shell))
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", module)
    return shell


def test_a_line_of_a_cell_has_the_cells_number(kernel):
    (stack,) = number_cell_files([STACK])
    assert users_line(stack) == "In [2], line 9 in step"
    assert stack[1] is STACK[1]


def test_a_cell_that_is_not_known_stays_the_cell(kernel):
    kernel.compile._filename_map.clear()
    assert number_cell_files([STACK]) == (STACK,)
    del kernel.compile._filename_map  # IPython 7
    (stack,) = number_cell_files([STACK])
    assert users_line(stack) == "line 9 of the cell in step"


def test_outside_of_ipython_there_are_no_cells(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython.core.interactiveshell", raising=False)
    assert number_cell_files([STACK]) == (STACK,)


def test_the_text_of_a_cell_is_that_of_the_code_within_it_that_ran(kernel, monkeypatch):
    """A magic's cell has the same number, and so has what a front end ran hidden before it."""
    within, hidden = "/tmp/ipykernel_77/within.py", "/tmp/ipykernel_77/hidden.py"
    for file, text in ((CELL, "run_cell_magic()\n"), (within, "x = 1\n"), (hidden, "None\n")):
        kernel.compile._filename_map[file] = 2
        monkeypatch.setitem(linecache.cache, file, (len(text), None, [text], file))
    stacks = [(Frame(within, 1, "<module>"), *STACK)]
    ((frame, *_),) = number_cell_files(stacks)
    assert lines_of(frame.file, files_of_cells(stacks)) == ["x = 1"]
