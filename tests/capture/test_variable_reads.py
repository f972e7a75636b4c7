"""Variables that no later line of a source file reads, from its text alone."""

import pytest

from nbmem.capture.interpreter.variable_reads import VariableReads

STRAIGHT = """\
raw = load()
data = raw.float()
train(data)
"""
LOOP = """\
raw = load()
for part in raw.split(8):
    y = part * 2
    z = y + 1
done()
"""
NESTED = """\
raw = load()
def step():
    return raw * 2
step()
done()
"""
OWN = """\
def load():
    raw = torch.ones(4)
    return raw
class Net:
    def forward(self, raw):
        return raw
raw = load()
done()
"""
MAIN = """\
def main():
    raw = load()
    mean = model(raw) - raw.mean()
    kept = raw.view(2)
    done(given)
given = load()
"""


@pytest.mark.parametrize(
    ("text", "line", "unread"),
    [
        (STRAIGHT, 2, set()),
        (STRAIGHT, 3, {"raw"}),
        (LOOP, 4, set()),
        (LOOP, 5, {"part", "raw", "y", "z"}),
        (NESTED, 5, set()),
        (OWN, 8, {"raw"}),
        (STRAIGHT + "print(eval('raw'))\n", 3, set()),
        (STRAIGHT + "done(\n  raw\n)\n", 5, {"data"}),
        ("def broken(:", 1, set()),
    ],
)
def test_a_variable_is_unread_behind_its_last_use(text, line, unread):
    assert set(VariableReads(text.splitlines()).unread(line, at_top=True)) == unread


def test_a_view_has_a_second_holder_and_a_function_is_named():
    reads = VariableReads(MAIN.splitlines())
    assert reads.unread(5, at_top=False) == {"kept": (), "mean": (), "raw": None}
    plain = VariableReads(MAIN.replace("raw.view(2)", "raw.sum()").splitlines())
    assert plain.unread(5, at_top=False)["raw"] == ("model",)
