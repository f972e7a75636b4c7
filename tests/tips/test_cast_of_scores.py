"""Scores that are cast to float32 as a whole, and read in parts."""

import gc

import pytest

import nbmem.api.tracing as nbmem
from nbmem import virtual

torch = pytest.importorskip("torch", reason="the programs are torch programs")

PROGRAM = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words, self.head = nn.Embedding(32000, width), nn.Linear(width, 32000, bias=False)

    def forward(self, ids):
        return self.head(self.words(ids))

def losses(scores, ids):
    {before}
    found = []
    for first in range(0, len(ids), {step}):
        part = scores[first : first + {step}]{inside}
        found.append(part.gather(1, ids[first : first + {step}, None]).mean())
    return torch.stack(found).mean()

net = Net(64).cuda().bfloat16()
{teacher}
for _ in range(2):
    ids = torch.zeros(8192, dtype=torch.int64, device="cuda")
    {teach}
    losses(net(ids), ids).backward()
    net.zero_grad()
"""
WHOLE = {"before": "scores = scores.float()", "inside": "", "step": 1024}
PARTS = {"before": "", "inside": ".float()", "step": 1024}
ALONE = {"teacher": "", "teach": ""}
TAUGHT = {
    "teacher": "teacher = Net(128).cuda().bfloat16().eval()",
    "teach": "with torch.no_grad(): guided = teacher(ids).argmax(1)",
}


@pytest.fixture
def record(tmp_path):
    """Provide record(values): the report of a program in a file, so that its lines can be read."""

    def run(values):
        path = tmp_path / "train.py"
        path.write_text(PROGRAM.format(**values), encoding="utf-8")
        names = {"__name__": "__main__"}
        with virtual.activated("T4"):
            with nbmem.trace("cell", namespace=names) as trace:
                exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
            report = trace.report()
            names.clear()
            gc.collect()
        return report

    return run


def tips(report):
    return [tip for tip in report.findings if "casts all scores" in tip.title]


@pytest.mark.parametrize("models", [ALONE, TAUGHT])
def test_the_cast_is_named_and_the_peak_falls_as_was_promised(record, models):
    report = record(WHOLE | models)
    (tip,) = tips(report)
    assert tip.title.startswith("`scores = scores.float()` (train.py:15) in losses() casts all")
    cured = record(PARTS | models)
    assert 0 < tip.low <= report.peak.allocated - cured.peak.allocated <= tip.high
    assert tips(cured) == []


@pytest.mark.parametrize(
    "values",
    [
        WHOLE | {"step": 8192},
        WHOLE | {"before": "scores = scores * 2"},
        PARTS | {"before": "scores = scores.clone()"},
    ],
)
def test_a_cast_that_is_read_as_a_whole_is_not_told(record, values):
    assert tips(record(values | ALONE)) == []
