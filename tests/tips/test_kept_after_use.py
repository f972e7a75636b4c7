"""Variables that hold tensors behind their last use, by the text of the script."""

import pytest

torch = pytest.importorskip("torch", reason="the programs are torch programs")

MIB = 2**20
CONVERTED = """
raw = torch.zeros(64 << 20, dtype=torch.float64, device="cuda")
data = raw.float()
{cure}
doubled = data * 2
scaled = doubled * data
"""
IN_FUNCTION = """
net = nn.Linear(1024, 1024).cuda()
def main():
    raw = torch.zeros(131072, 1024, device="cuda")
    with torch.no_grad():
        feats = {made}
    {cure}
    scores = [feats[i : i + 8192] @ feats.T[:, :16384] for i in range(0, 16384, 8192)]
    return scores[0].sum() {last}
main()
"""
MODEL = """
encoder = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(6))).cuda()
with torch.no_grad():
    text = encoder(torch.zeros(8, 4096, device="cuda"))
{cure}
pictures = torch.zeros(128 << 20, device="cuda") * 2
"""


def of_rule(report, rule="kept_after_use"):
    return [tip for tip in report.findings if tip.rule == rule]


def test_the_peak_falls_by_what_was_promised(report_of):
    report = report_of(CONVERTED.format(cure=""))
    (tip,) = of_rule(report)
    cured = report_of(CONVERTED.format(cure=tip.code))
    assert tip.code.startswith("del raw ")
    assert tip.low == tip.high == 512 * MIB
    assert report.peak.allocated - cured.peak.allocated == tip.high
    assert of_rule(cured) == []


def test_a_variable_of_a_function_is_told_where_nothing_else_holds_its_tensor(report_of):
    (tip,) = of_rule(report_of(IN_FUNCTION.format(made="net(raw)", cure="", last="")))
    assert "`del raw`" in tip.title
    assert "main()" in tip.title
    assert tip.low == 512 * MIB


@pytest.mark.parametrize(
    "change",
    [
        {"cure": "del raw"},
        {"last": "+ raw.sum()"},
        {"cure": "part = raw.view(-1)"},
        {"cure": "keep(raw)", "made": "net(raw); keep = [].append"},
    ],
)
def test_what_may_be_read_or_held_again_is_not_told(report_of, change):
    code = IN_FUNCTION.format(**{"made": "net(raw)", "cure": "", "last": ""} | change)
    assert of_rule(report_of(code)) == []


def test_a_model_that_nothing_reads_is_a_model_too_many(report_of):
    (tip,) = of_rule(report_of(MODEL.format(cure="")), "two_models")
    assert tip.code.startswith("del encoder")
    assert of_rule(report_of(MODEL.format(cure="del encoder")), "two_models") == []
