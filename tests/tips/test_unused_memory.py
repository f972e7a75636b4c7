"""Memory behind its last use, by what operators read and write on a virtual card."""

import pytest

torch = pytest.importorskip("torch", reason="the programs are torch programs")

MIB = 2**20
PIPELINE = """
class Pipeline:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
        self.batch = None
    def fetch(self):
        return {{"ids": torch.zeros(64 << 20, device="cuda"), "of": "train"}}
    def step(self):
        self.batch = self.fetch()
        hidden = self.batch["ids"].view(-1, 1024).log()
        {cure}
        loss = self.net(hidden).mean()
        loss.backward()
pipeline = Pipeline()
for _ in range(2):
    pipeline.step()
"""
WEIGHTED = """
net = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1)).cuda()
def energy(z):
    return net(z).squeeze(1) ** 2
def anneal(z, steps):
    weight = torch.zeros(len(z), device="cuda")
    for _ in range(steps):
        weight = weight + energy(z){cure}
        point = z.detach().requires_grad_()
        torch.autograd.grad(energy(point).sum(), point)
    return weight.detach()
anneal(torch.zeros(16384, 1024, device="cuda"), 6)
anneal(torch.zeros(16384, 1024, device="cuda"), 6)
"""


def of_rule(report):
    return [tip for tip in report.findings if tip.rule == "unused_memory"]


def test_an_attribute_that_no_operator_reads_any_more(report_of):
    report = report_of(PIPELINE.format(cure=""))
    cured = report_of(PIPELINE.format(cure="self.batch = None"))
    (tip,) = of_rule(report)
    assert "pipeline.batch" in tip.title or "self.batch" in tip.title
    assert report.peak.allocated - cured.peak.allocated == tip.low == tip.high
    assert of_rule(cured) == []


def test_what_a_graph_saves_for_no_backward(report_of):
    report = report_of(WEIGHTED.format(cure=""))
    cured = report_of(WEIGHTED.format(cure=".detach()"))
    (tip,) = of_rule(report)
    assert "in energy()" in tip.title
    assert "torch.no_grad()" in tip.title
    saved = report.peak.allocated - cured.peak.allocated
    assert saved == pytest.approx(tip.high, rel=0.01)
    assert of_rule(cured) == []


@pytest.mark.parametrize(
    "code",
    [
        # Read again behind the peak.
        "x = torch.zeros(64 << 20, device='cuda')\ny = (x + 1).sum()\nz = x.sum()",
        # The arguments of a call live as long as the call.
        "def loss(x):\n    return (x.exp() * 2).sum()\nloss(torch.zeros(64 << 20, device='cuda'))",
        # A training's own: nothing is too much.
        "net = nn.Linear(4096, 4096).cuda()\nopt = torch.optim.Adam(net.parameters())\n"
        "for _ in range(3):\n    net(torch.zeros(64, 4096, device='cuda')).sum().backward()\n"
        "    opt.step()\n    opt.zero_grad()",
    ],
)
def test_what_is_used_or_has_to_live_is_not_told(report_of, code):
    assert of_rule(report_of(code)) == []


def test_a_kernel_that_is_no_operator_may_read_anything(report_of, gpu_launch):
    code = PIPELINE.format(cure="launch_unseen()")
    assert of_rule(report_of(gpu_launch + code)) == []


@pytest.fixture
def gpu_launch():
    return "from nbmem import virtual\ndef launch_unseen(): virtual.active().launch_unseen()\n"
