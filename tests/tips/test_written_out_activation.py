"""Activation functions that a program writes out as formulas."""

import pytest

torch = pytest.importorskip("torch", reason="the programs are torch programs")

from nbmem.report.tips.rules.written_out_activation import FORMULAS

NET = """
from torch.nn import functional as F
def act(x):
    return {formula}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(6))
    def forward(self, x):
        for layer in self.layers:
            x = act(layer(x))
        return x
net = Net().cuda()
for _ in range(2):
    net(torch.zeros(16384, 1024, device="cuda")).mean().backward()
    net.zero_grad()
"""


def of_rule(report):
    return [tip for tip in report.findings if tip.rule == "written_out_activation"]


@pytest.mark.parametrize(
    ("formula", "instead"),
    [
        ("x * torch.sigmoid(x)", "F.silu(x)"),
        ("x * x.sigmoid()", "F.silu(x)"),
        ("x * torch.tanh(F.softplus(x))", "F.mish(x)"),
        ("0.5 * x * (1 + torch.erf(x / 2**0.5))", "F.gelu(x)"),
    ],
)
def test_the_peak_falls_by_what_was_promised(report_of, formula, instead):
    report = report_of(NET.format(formula=formula))
    cured = report_of(NET.format(formula=instead))
    (tip,) = of_rule(report)
    assert f"`{instead}` for" in tip.title
    assert "in act()" in tip.title
    gain = report.peak.allocated - cured.peak.allocated
    assert 0.99 * tip.low <= gain <= 1.01 * tip.high
    assert of_rule(cured) == []


def test_a_gate_is_no_activation_function(report_of):
    """Another tensor is multiplied: nothing is computed twice."""
    gate = "x[:, :512].repeat(1, 2) * torch.sigmoid(x)"
    assert of_rule(report_of(NET.format(formula=gate))) == []


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("return input * F.sigmoid(input)", "F.silu({})"),
        ("y = torch.sigmoid(self.h) * self.h", "F.silu({})"),
        ("return x.mul_(x.sigmoid())", "F.silu({})"),
        ("return x.mul(x.sigmoid())", "F.silu({})"),
        (
            "return .5 * x * (1. + torch.tanh(c * (x + 0.044715 * x ** 3)))",
            'F.gelu({}, approximate="tanh")',
        ),
        ("gate * torch.sigmoid(x)", None),
        ("x * torch.sigmoid(xs)", None),
        ("a.x * torch.sigmoid(x)", None),
    ],
)
def test_formulas_as_people_write_them(text, instead):
    found = [one.instead for one in FORMULAS if one.text.search(text)]
    assert found == ([] if instead is None else [instead])
