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
    assert "what energy(), called by anneal() saves" in tip.title
    assert "torch.no_grad()" in tip.title
    saved = report.peak.allocated - cured.peak.allocated
    assert saved == pytest.approx(tip.high, rel=0.01)
    assert of_rule(cured) == []


READ_AGAIN = """
x = torch.zeros(64 << 20, device='cuda')
y = (x + 1).sum()
z = x.sum()
"""
ARGUMENT = """
def loss(x):
    return (x.exp() * 2).sum()
loss(torch.zeros(64 << 20, device='cuda'))
"""
TRAINING = """
net = nn.Linear(4096, 4096).cuda()
opt = torch.optim.Adam(net.parameters())
for _ in range(3):
    scores = net(torch.zeros(32768, 4096, device='cuda'))
    scores.square().mean().backward()
    opt.step()
    opt.zero_grad()
"""
BUFFERS = """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1024, 1024)
        self.register_buffer("cache", torch.zeros(64 << 20), persistent=False)
    def forward(self, x):
        return self.net({given})
decoder = Decoder().cuda()
with torch.no_grad():
    decoder(torch.zeros(8, 1024, device="cuda"))
    decoder(torch.zeros(8, 1024, device="cuda"))
"""
FAILS = """
def step():
    batch = torch.zeros(64 << 20, device="cuda")
    part = batch.sum()
    whole = torch.zeros(8 << 20, device="cuda")
    raise ValueError("before the batch is read again")
step()
"""


@pytest.mark.parametrize(
    "code", [READ_AGAIN, ARGUMENT, TRAINING, BUFFERS.format(given="x + self.cache[:1024]")]
)
def test_what_is_used_or_has_to_live_is_not_told(report_of, code):
    assert of_rule(report_of(code)) == []


def test_a_buffer_that_no_operator_uses_is_told(report_of):
    report = report_of(BUFFERS.format(given="x"))
    (tip,) = of_rule(report)
    assert tip.title.startswith("No operator uses `decoder.cache`")
    assert tip.low == 256 * MIB


def test_what_lived_when_a_cell_failed_is_not_told():
    import nbmem.api.tracing as nbmem
    from nbmem import virtual

    names = {"torch": torch}
    with virtual.activated("T4"):
        with pytest.raises(ValueError, match="read again"), nbmem.trace("c", namespace=names) as t:
            exec(FAILS, names)
        assert of_rule(t.report()) == []


def test_a_kernel_that_is_no_operator_may_read_anything(report_of, gpu_launch):
    code = PIPELINE.format(cure="launch_unseen()")
    assert of_rule(report_of(gpu_launch + code)) == []


@pytest.fixture
def gpu_launch():
    return "from nbmem import virtual\ndef launch_unseen(): virtual.active().launch_unseen()\n"
