"""Results that wait on the card: filled tensors, callbacks, hooks, repeated data."""

import pytest

torch = pytest.importorskip("torch", reason="the programs are torch programs")

MIB = 2**20
FILLED = """
net = nn.Conv2d(3, 16, 3, padding=1).cuda().eval()
def predict(picture):
    scores = torch.zeros(16, 4096, 4096{device})
    for y in range(0, 4096, 512):
        scores[:, y : y + 512] = net(picture[:, y : y + 512]){cpu}
    return scores.argmax(0)
with torch.no_grad():
    classes = predict(torch.zeros(3, 4096, 4096, device="cuda"))
"""
REPEATED = """
def pairs(x):
    many = x[:, None].{repeat}
    return (many * x).sum(-1)
total = pairs(torch.ones(1024, 512, device="cuda")).sum()
"""
CALLBACKS = """
net = nn.Conv2d(3, 32, 3, padding=1).cuda().eval()
jobs = []
def later(y):
    {cure}
    return lambda: y.mean()
with torch.no_grad():
    for _ in range(6):
        jobs.append(later(net(torch.ones(4, 3, 512, 512, device="cuda"))))
"""
BESIDE = """
net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda().eval()
def run(x):
    found, handles = {{}}, []
    for name, layer in net.named_children():
        keep = lambda layer, given, made, name=name: found.update({{name: made}})
        handles.append(layer.register_forward_hook(keep))
    net(x)
    for handle in handles:
        handle.remove()
    return found
with torch.no_grad():
    for _ in range(4):
        cache = run(torch.ones(16384, 4096, device="cuda"))
        first = cache["0"].mean()
        {cure}
"""
CASES = {
    "a tensor that a function fills": (
        "grows_each_step",
        FILLED.format(device=', device="cuda"', cpu=""),
        FILLED.format(device="", cpu=".cpu()"),
        '`scores = torch.zeros(16, 4096, 4096, device="cuda")`',
    ),
    "a repeated tensor": (
        "large_temporaries",
        REPEATED.format(repeat="repeat(1, 1024, 1)"),
        REPEATED.format(repeat="expand(-1, 1024, -1)"),
        "`x.expand(...)`",
    ),
    "what a list of callbacks closes over": (
        "grows_each_step",
        CALLBACKS.format(cure=""),
        CALLBACKS.format(cure="y = y.cpu()"),
        "`jobs` grows by 128.0 MiB",
    ),
    "the results of the pass before": (
        "second_step_peak",
        BESIDE.format(cure=""),
        BESIDE.format(cure="del cache"),
        "`del cache`",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_peak_falls_by_what_was_promised(report_of, name):
    rule, code, cured, words = CASES[name]
    found, mended = report_of(code), report_of(cured)
    (tip,) = [tip for tip in found.findings if tip.rule == rule]
    assert words in tip.title
    saved = found.peak.allocated - mended.peak.allocated
    assert 100 * MIB < 0.99 * tip.low <= saved <= 1.01 * tip.high
    assert [tip.title for tip in mended.findings if words in tip.title] == []
