"""A model whose input gets the rows of all calls before."""

import pytest

MIB = 2**20
PREPARE = """
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 16)).cuda().eval()
def prepare(batches):
    rows, results = [], []
    with torch.no_grad():
        for index in range(batches):
            rows.append(torch.zeros(2048, 1024))
            results.append(model(torch.cat(rows).cuda()).argmax(1).cpu())
            {cure}
    return results
"""


@pytest.fixture
def tips(run):
    def of_rule(cure="pass", call="prepare(8)"):
        code = f"import torch\nfrom torch import nn\n{PREPARE.format(cure=cure)}"
        trace, _ = run(call, before=code, card="T4")
        report = trace.report()
        return report, [tip for tip in report.findings if tip.rule == "growing_input"]

    return of_rule


def test_the_peak_falls_by_what_was_promised(tips):
    report, (tip,) = tips()
    cured, none = tips(cure="rows.clear()")
    assert "`model` gets more rows with each call" in tip.title
    gain = report.peak.allocated - cured.peak.allocated
    assert 0.99 * tip.low <= gain <= 1.01 * tip.high
    assert tip.high - tip.low <= 0.1 * gain
    assert none == []


@pytest.mark.parametrize(
    "cure",
    [
        "rows[:] = [torch.zeros(2048 if index % 2 else 6144, 1024)][:index]",  # up and down
        "rows = rows[-2:]",  # two batches at most
    ],
)
def test_an_input_that_does_not_rise_all_the_time_is_not_told(tips, cure):
    assert tips(cure=cure)[1] == []


def test_batches_of_growing_length_have_as_many_rows(tips):
    call = """
model = nn.Conv1d(64, 256, 9).cuda().eval()
with torch.no_grad():
    for length in range(1000, 9000, 1000):
        model(torch.zeros(32, 64, length, device="cuda"))
"""
    assert tips(call=call)[1] == []
