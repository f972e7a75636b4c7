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


SCORES = """
class Attention(nn.Module):
    def scores(self, q, k):
        base = torch.empty(64, 1024, 1024, device="cuda")
        scores = torch.baddbmm(base, q, k.transpose(1, 2), beta=0)
        {cure}
        weights = scores.softmax(-1)
        return weights
    def forward(self, q):
        return self.scores(q, q) @ q
attention = Attention()
with torch.no_grad():
    attention(torch.zeros(64, 1024, 64, device="cuda"))
"""
OUTPUTS = """
head = nn.Linear(64, {classes}).cuda()
def step():
    outputs = head(torch.zeros(4096, 64, device="cuda"))
    loss = outputs.mean()
    {cure}
    loss.backward()
for _ in range(3):
    step()
"""
FORCES = """
net = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 3)).cuda()
def forces(points, of_graph):
    points = points.detach().requires_grad_()
    energies = net(points).sum(0)
    found = [
        torch.autograd.grad(energy, points, create_graph=of_graph, retain_graph=True)[0]
        for energy in energies
    ]
    second = {second}
    return [one.detach() for one in found]
for _ in range(3):
    forces(torch.zeros(32768, 256, device="cuda"), {of_graph})
"""


def saved_by(report_of, faulty, cured):
    """Return the tip of a program, and the bytes that its cure takes off the peak."""
    report, without = report_of(faulty), report_of(cured)
    (tip,) = of_rule(report)
    assert of_rule(without) == []
    return tip, report.peak.allocated - without.peak.allocated


def test_a_local_that_a_modules_function_reads_no_more(report_of):
    tip, saved = saved_by(report_of, SCORES.format(cure=""), SCORES.format(cure="del base"))
    assert tip.title.startswith("Release `base` behind the last use in scores()")
    assert tip.low == saved == 256 * MIB


def test_a_result_that_lives_through_the_backward_is_a_variables(report_of):
    cured = OUTPUTS.format(classes=16384, cure="del outputs")
    tip, saved = saved_by(report_of, OUTPUTS.format(classes=16384, cure=""), cured)
    assert tip.title.startswith("Release `outputs` behind the last use in step(): ")
    assert tip.low == saved == 256 * MIB


def test_a_second_graph_that_no_backward_reads(report_of):
    faulty = FORCES.format(second=0, of_graph=True)
    tip, saved = saved_by(report_of, faulty, FORCES.format(second=0, of_graph=False))
    assert "the graph that `create_graph=True` makes" in tip.title
    assert tip.low <= saved <= tip.high
    read = "torch.autograd.grad(sum(one.square().sum() for one in found), points)"
    assert of_rule(report_of(FORCES.format(second=read, of_graph=True))) == []


def test_a_kernel_that_is_no_operator_may_read_anything(report_of, gpu_launch):
    code = PIPELINE.format(cure="launch_unseen()")
    assert of_rule(report_of(gpu_launch + code)) == []


@pytest.fixture
def gpu_launch():
    return "from nbmem import virtual\ndef launch_unseen(): virtual.active().launch_unseen()\n"
