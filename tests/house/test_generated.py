"""What is written by a tool is what that tool writes today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "palette.py"


def test_the_colours_of_the_page_are_those_of_the_report():
    spec = importlib.util.spec_from_file_location("palette_tool", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    fresh = tool.TARGET.read_text() == tool.typescript()
    assert fresh, "run `python3 tools/palette.py` to write labextension/src/palette.ts"
