"""The line that a person wrote, out of a stack that torch took."""

import pytest

from nbmem.core.session.events import Frame
from nbmem.report.analysis.source_lines import users_line

TORCH = Frame("/usr/lib/python3/site-packages/torch/nn/modules/conv.py", 9, "forward")
INDUCTOR = Frame("/tmp/torchinductor_root/z3/cz3v.py", 1655, "call")
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
        ((Frame(r"C:\Users\x\train.py", 12, "<module>"),), "train.py:12"),
        ((Frame("/tmp/ipykernel_77/123.py", 4, "<module>"),), "line 4 of the cell"),
        ((Frame("/tmp/ipykernel_77/123.py", 4, "f"),), "line 4 of the cell in f"),
        ((Frame("<ipython-input-5-0a1b>", 2, "<module>"),), "In [5], line 2"),
        ((Frame("/tmp/ipython-input-7-2859.py", 2, "f"),), "In [7], line 2 in f"),
        ((Frame("/tmp/ipython-input-2859.py", 2, "f"),), "line 2 of the cell in f"),
        ((INDUCTOR, Frame("/home/x/train.py", 12, "step")), "train.py:12 in step"),
        ((Frame("<ipython-input-5-0a1b>", 2, "<cell line: 1>"),), "In [5], line 2"),
    ],
)
def test_the_innermost_line_of_the_users(stack, line):
    assert users_line(stack) == line
