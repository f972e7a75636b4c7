"""Models that outlive their successor, and lists that keep a loop's variables."""

import pytest

torch = pytest.importorskip("torch", reason="the programs are torch programs")

SWITCH = """
class Current:
    model = None

class Sampler:
    def __init__(self, model):
        self.model = model

def load(width):
    Current.model = None
    Current.model = nn.Sequential(nn.Linear(2048, width), nn.Linear(width, 2048)).cuda().eval()

@torch.no_grad()
def paint(rows):
    sampler = Sampler(Current.model)
    last.{keep}
    return sampler.model(torch.rand(rows, 2048, device="cuda")).sum().item()

class Last:
    sampler = noise = None

last = Last()
for width in (20000, 21000, 22000):
    load(width)
    paint(64)
"""
PARTS = """
@torch.no_grad()
def generate():
    encoder = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    text = encoder(torch.rand(64, 2048, device="cuda"))
    head = nn.Linear(2048, 2048).cuda()
    return head(text).sum().item()

generate()
"""
LAYERS = """
@torch.no_grad()
def build(depth):
    x, layers = torch.rand(64, 2048, device="cuda"), []
    for _ in range(depth):
        layers.append(nn.Linear(2048, 2048).cuda())
        x = layers[-1](x)
    return x.sum().item()

build(40)
build(40)
"""
KEPT = """
net = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.Conv2d(64, 1, 3, padding=1)).cuda()
optimizer = torch.optim.SGD(net.parameters())

def step(batch):
    scores = net(batch)
    return {{"loss": (scores - batch).square().mean(), "scores": scores.sigmoid(){kept}}}

def fit(epochs, batches):
    for _ in range(epochs):
        outputs = []
        for number in range(batches):
            rows = (3, 2, 4)[min(number, 2)]  # the variables of the first three steps are read
            batch = torch.rand(rows, 1, 1024, 1024).cuda()
            output = step(batch)
            optimizer.zero_grad()
            output["loss"].backward()
            optimizer.step()
            outputs.append({{name: value.detach() for name, value in output.items()}})
            del output, batch
        del outputs

fit(2, 30)
"""
STATES = """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(24))

    def forward(self, x):
        states = ()
        for layer in self.layers:
            x = layer(x).tanh()
            states += (x,) if {kept} else ()
        return {{"last": x, "states": states}}

@torch.no_grad()
def embed(rows):
    output = encoder(torch.rand(rows, 1024).cuda())
    return output["last"]

def head(states):
    return torch.cat([states.softmax(1), states], 1).sum().item()

encoder = Encoder().cuda().eval()
for _ in range(3):
    head(embed(8192))
"""


def unused(report):
    return [tip for tip in report.findings if tip.rule == "unused_memory"]


def test_a_model_lives_on_while_the_next_one_is_loaded(report_of):
    report = report_of(SWITCH.format(keep="sampler = sampler"))
    cured = report_of(SWITCH.format(keep="noise = None"))
    (tip,) = unused(report)
    assert "sampler.model` lives on while another model is loaded" in tip.title
    assert report.peak.allocated - cured.peak.allocated == tip.low == tip.high > 256 << 20
    assert unused(cured) == []


@pytest.mark.parametrize("program", [PARTS, LAYERS], ids=["a small part", "a layer at a time"])
def test_a_model_lives_beside_parts_that_are_built_later(report_of, program):
    assert unused(report_of(program)) == []


def test_the_list_is_named_that_keeps_what_a_variable_had(report_of):
    report = report_of(KEPT.format(kept=""))
    (tip,) = unused(report)
    assert "`outputs` in fit()" in tip.title
    cured = report_of(KEPT.format(kept=".mean()"))
    saved = report.peak.allocated - cured.peak.allocated
    assert tip.high == pytest.approx(saved, rel=0.02)
    assert unused(cured) == []


def test_results_that_no_operator_uses(report_of):
    report = report_of(STATES.format(kept="True"))
    (tip,) = unused(report)
    assert "tensors that `encoder` returns" in tip.title
    cured = report_of(STATES.format(kept="False"))
    assert tip.low <= report.peak.allocated - cured.peak.allocated <= tip.high
    assert unused(cured) == []
