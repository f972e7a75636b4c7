"""Generated files equal the output of their tools."""

import importlib.util
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def tool_of(name):
    spec = importlib.util.spec_from_file_location(f"{name}_tool", TOOLS / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_colours_of_the_page_are_those_of_the_report():
    tool = tool_of("palette")
    fresh = tool.TARGET.read_text() == tool.typescript()
    assert fresh, "run `python3 tools/palette.py` to write labextension/src/palette.ts"


def test_the_categories_of_the_page_are_those_of_the_ledger():
    tool = tool_of("categories")
    fresh = tool.TARGET.read_text() == tool.typescript()
    assert fresh, "run `python3 tools/categories.py` to write labextension/src/categories.ts"


def test_the_explorers_pictures_are_what_bokeh_makes_of_them():
    bokeh = pytest.importorskip("bokeh", reason="the pictures are made with it")
    if bokeh.__version__.split(".")[:2] != ["3", "9"]:
        pytest.skip("another Bokeh writes other defaults; the file is written with 3.9's")
    tool = tool_of("figures")
    fresh = tool.unversioned(tool.TARGET.read_text()) == tool.unversioned(tool.written())
    assert fresh, "run `python3 tools/figures.py` to write labextension/src/explorer/figures.json"
