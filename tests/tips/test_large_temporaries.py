"""The function whose temporaries make the peak is named, and its cure measured."""

import pytest

import nbmem.api.tracing as nbmem
from nbmem import virtual

torch = pytest.importorskip("torch", reason="the programs are torch programs")

MIB = 2**20
HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
SCORES = """
def score(x):
    inside = x.sigmoid() * (x > 0).float()
    return inside.sum(1)

x = torch.ones(1024, 262144, device="cuda")
best = {call}
"""
LISTED = """
def delta(i):
    return small @ small.T

small = torch.ones(8192, 4, device="cuda")
total = torch.zeros(8192, device="cuda")
{loop}
"""
ATTENTION = """
def attend(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1) @ v

q = torch.ones(8, 8192, 64, device="cuda", dtype=torch.float16)
y = attend(q, q, q)
"""
DISTANCES = """
def distances(x, y):
    return (x[:, None] - y[None]).pow(2).sum(2).sqrt()

x = torch.ones(1024, 512, device="cuda")
d = distances(x, x)
"""
DIAGONAL = """
def weighted(x, v):
    return x @ v.diag()

y = weighted(torch.ones(64, 16384, device="cuda"), torch.ones(16384, device="cuda"))
"""
SQUARE = """
def basis(gradient, rank):
    u, s, vh = torch.linalg.svd(gradient)
    return u[:, :rank].clone()

q = basis(torch.ones(16384, 64, device="cuda"), 8)
"""
CHOSEN = """
def chosen(logits, tokens):
    return logits.log_softmax(-1).gather(-1, tokens[:, None])

rewards = chosen(torch.ones(8192, 32000, device="cuda"), torch.zeros(8192, device="cuda").long())
"""
ONE_HOT = """
def loss(target, logits):
    one_hot = F.one_hot(target, 32000).to(logits.dtype)
    return (one_hot * logits).sum() + torch.zeros_like(logits).sum()

total = loss(torch.zeros(8192, device="cuda").long(), torch.ones(8192, 32000, device="cuda"))
"""
NESTED = """
class Inner(nn.Module):
    def forward(self, x):
        return x * 2

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        opened = x.sigmoid()
        return self.inner(opened).sum()

other = torch.ones(1024, 262144, device="cuda")
x = torch.ones(1024, 262144, device="cuda")
total = Outer()(x).item()
"""
SILENT = {
    "functions of one name that call each other": NESTED,
    "a forward that calls that of torch's class": "class Wide(nn.Linear):\n"
    "    def forward(self, x):\n        return super().forward(x)\n"
    "wide = Wide(1024, 65536).cuda()\nwith torch.no_grad():\n"
    "    y = wide(torch.ones(4096, 1024, device='cuda')).mean().item()",
    "a function that makes its data": SCORES.format(call="0").replace(
        "def score(x):\n", "def score(x):\n    x = torch.zeros(1024, 262144, device='cuda')\n"
    )
    + "score(x)",
    "a module of a library": "net = nn.Sequential(nn.Linear(1024, 65536), nn.GELU()).cuda()\n"
    "with torch.no_grad():\n    y = net(torch.ones(4096, 1024, device='cuda')).mean().item()",
    "activations of a training": "w = torch.ones(1, 262144, device='cuda', requires_grad=True)\n"
    "x = torch.ones(1024, 262144, device='cuda')\n"
    "def loss(x):\n    return (x * w).sigmoid().mean()\nl = loss(x)\nl.backward()",
    "a model that is built": "nets = [nn.Linear(4096, 4096, device='cuda') for _ in range(60)]\n"
    "total = sum(p.sum() for net in nets for p in net.parameters()).item()\ndel nets",
    "little of the card": SCORES.format(call="score(x)").replace("262144", "26214"),
}


@pytest.fixture
def record(tmp_path):
    """Provide record(code): the trace of a program in a file, so that its lines can be read."""

    def run(code, **options):
        path = tmp_path / "train.py"
        path.write_text(HEAD + code, encoding="utf-8")
        names = {"__name__": "__main__"}
        trace = nbmem.trace("cell", namespace=names, **options)
        with virtual.activated("T4"):
            torch.cuda.init()
            with trace:
                exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
        return trace

    return run


def said(trace):
    return [one for one in trace.report().findings if one.rule == "large_temporaries"]


@pytest.mark.parametrize("stacks", [False, True])
def test_an_expression_is_told_with_its_line_and_its_bytes(record, stacks):
    trace = record(SCORES.format(call="score(x)"), stacks=stacks)
    (found,) = said(trace)
    assert found.title.startswith(
        "`inside = x.sigmoid() * (x > 0).float()` (train.py:6) in score() makes temporaries that "
        "hold 3.00 GiB at the peak: compute it in parts"
    )
    assert "train.py:6 made 3 x 1.00 GiB" in found.evidence
    mended = record(SCORES.format(call="torch.cat([score(part) for part in x.split(128)])"))
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert found.low <= saved <= found.high


def test_a_list_of_temporaries_is_told_with_the_line_that_makes_it(record):
    all_at_once = "deltas = [delta(i) for i in range(8)]\nfor one in deltas: total += one.sum(1)\n"
    trace = record(LISTED.format(loop=all_at_once + "del deltas, one"))
    (found,) = said(trace)
    assert "called by `deltas = [delta(i) for i in range(8)]`" in found.title
    assert found.title.endswith("make and use them one by one")
    mended = record(LISTED.format(loop="for i in range(8): total += delta(i).sum(1)"))
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert found.low == saved == 7 * 256 * MIB


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (ATTENTION, "`F.scaled_dot_product_attention(q, k, v)`"),
        (DISTANCES, "`torch.cdist(x, y)`"),
        (DIAGONAL, "multiply by the vector (`x * v`)"),
        (SQUARE, "`full_matrices=False`"),
        (CHOSEN, "`logits.logsumexp(-1)`"),
    ],
)
def test_the_cure_follows_from_the_line(record, code, cure):
    (found,) = said(record(code))
    assert cure in found.title


@pytest.mark.parametrize("name", SILENT)
def test_what_only_looks_like_it_is_not_told(record, name):
    trace = record(SILENT[name])
    assert said(trace) == []
    assert trace.report().peak.allocated > 100 * MIB


def test_a_conversion_to_another_type_is_no_data(record):
    trace = record(ONE_HOT)
    (found,) = said(trace)
    assert "F.one_hot(target, 32000)" in found.title
    mended = record(
        ONE_HOT.replace(
            "    one_hot =", "    return logits.gather(1, target[:, None]).sum()\n    one_hot ="
        )
    )
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert found.low <= saved <= found.high + 2 * MIB  # the mended loss makes other small tensors


def test_bytes_of_the_cache_are_told_behind_what_fills_it(record):
    rising = "for n in (64, 256, 512, 1024): best = score(x[:n])"
    trace = record(SCORES.format(call="0") + rising)
    assert trace.report().findings[0].rule == "large_temporaries"
