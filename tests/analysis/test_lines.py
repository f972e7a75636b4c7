"""The line that a person wrote, out of a stack that torch took."""

import pytest

from nbmem.analysis.lines import users_line
from nbmem.core.events import Frame

TORCH = Frame("/usr/lib/python3/site-packages/torch/nn/modules/conv.py", 9, "forward")
OURS = Frame("/home/x/nbmem/virtual/history.py", 95, "on_event")


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ((), None),
        ((OURS,), None),
        ((OURS, TORCH), "conv.py:9 in forward"),
        ((OURS, Frame("/data/nbmem/train.py", 3, "step"), TORCH), "train.py:3 in step"),
        ((TORCH, Frame("/home/x/train.py", 12, "step")), "train.py:12 in step"),
        ((Frame("/home/x/train.py", 12, "<module>"),), "train.py:12"),
        ((Frame("/tmp/ipykernel_77/123.py", 4, "<module>"),), "line 4 of the cell"),
        ((Frame("/tmp/ipykernel_77/123.py", 4, "f"),), "line 4 of the cell in f"),
        ((Frame("<ipython-input-5-0a1b>", 2, "<module>"),), "In [5], line 2"),
        ((Frame("<ipython-input-5-0a1b>", 2, "<cell line: 1>"),), "In [5], line 2"),
    ],
)
def test_the_innermost_line_of_the_users(stack, line):
    assert users_line(stack) == line
