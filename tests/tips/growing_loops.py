"""Loops that leak, and loops that only look so."""

NET = """
import collections
import functools

import torch
from torch import nn

net = nn.Linear(512, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batch = lambda rows=1024: torch.randn(rows, 512, device="cuda")
def step():
    out = net(batch(512))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return out.detach()
"""
EVALUATE = """
with torch.no_grad():
    for i in range({rounds}):
        {line}
"""


def evaluation(line: str, rounds: int = 12) -> str:
    """Write a loop without gradients."""
    return EVALUATE.format(line=line, rounds=rounds)


FUNCTION = """
def evaluate():
    preds = {empty}
    with torch.no_grad():
        for i in range(12):
            {line}
    return preds[0].mean().item()
evaluate()
"""
CACHE = """
@functools.lru_cache(maxsize=None)
def embed(i):
    return net(batch())
"""
METRIC = """
class Metric:
    def __init__(self):
        self.preds = []
    def update(self, preds):
        self.preds.append(preds)
metric = Metric()
"""
STREAM = """
def stream():
    seen = []
    while True:
        seen.append(net(batch()))
        yield seen[-1].mean()
outputs = stream()
"""
CLOSURE = """
def make():
    cache = []
    return lambda x: cache.append(net(x))
keep = make()
"""

TRAINED = """
class Fold:
    def __init__(self):
        self.model = nn.Linear(1024, 1024, bias=False).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
    def fit(self):
        for _ in range(3):
            self.model(torch.randn(2048, 1024, device="cuda")).square().mean().backward()
            self.optimizer.step(); self.optimizer.zero_grad()
folds = []
"""
LEAKS = {
    "models that were trained one after another, with their optimizers": (
        TRAINED + "for _ in range(5):\n    folds.append(Fold())\n    folds[-1].fit()",
        "`folds` (`folds[0].optimizer.state` and `folds[1].optimizer.state` and others)",
        12, 60,
    ),
    "a deque that will not fit": (
        "last = collections.deque(maxlen=100_000)" + evaluation("last.append(net(batch()))"),
        "`last`", 4, 48,
    ),
    "a cache whose limit is too high": (
        CACHE.replace("None", "100_000") + evaluation("embed(i)"),
        "`the lru_cache of embed`", 4, 48,
    ),
    "an evaluation behind a training": (
        "preds = []\nfor _ in range(3): step()" + evaluation("preds.append(net(batch()))"),
        "`preds`", 4, 48,
    ),
    "a training in front of an evaluation": (
        "outs = []\nfor _ in range(8): outs.append(step())" + evaluation("net(batch())"),
        "`outs`", 2, 16,
    ),
    "several calls an iteration": (
        "preds = []" + evaluation("x = batch(); preds.append(net(x)); net(x); net(x)"),
        "`preds`", 4, 48,
    ),
    "two of three results are kept": (
        "preds = []" + evaluation("x = batch(); net(x); preds += [net(x), net(x)]"),
        "`preds`", 8, 96,
    ),
    "no module": (
        "grams = []\nfor _ in range(12):\n    x = batch(2048); grams.append(x.T @ x)\ndel x",
        "`grams`", 1, 12,
    ),
    "a tensor that is joined": (
        "host = torch.empty(0, device='cuda')"
        + evaluation("out = net(batch()); host = torch.cat((host, out))"),
        "`host`", 4, 48,
    ),
    "a dictionary of a hook": (
        "acts = {}\nnet.register_forward_hook(lambda m, args, out: acts.update({i: out}))"
        + evaluation("net(batch())"),
        "`acts`", 4, 48,
    ),
    "a cache without a bound": (
        CACHE + evaluation("embed(i)"), "`the lru_cache of embed`", 4, 48,
    ),
    "the state of a metric": (
        METRIC + evaluation("metric.update(net(batch()))"), "`metric.preds`", 4, 48,
    ),
    "a list of a generator": (
        STREAM + evaluation("next(outputs)"), "`seen` in the generator outputs", 4, 48,
    ),
    "a list that a function closes over": (
        CLOSURE + evaluation("keep(batch())"), "`cache` closed over by keep", 4, 48,
    ),
    "every second step": (
        "kept = []\nfor i in range(12):\n    out = step()\n    if i % 2: kept.append(out)\ndel out",
        "`kept`", 2, 12,
    ),
}  # fmt: skip
"""The program, what gains, and the MiB that an iteration adds and that are held at the end."""

ENDED = {
    "a list of a function": FUNCTION.format(empty="[]", line="preds.append(net(batch()))"),
    "a list whose names were not read": """
def evaluate():
    with torch.no_grad():
        preds = [net(batch()) for _ in range(12)]
    return preds[0].mean().item()
evaluate()
""",
    "a function that is called again": """
def evaluate():
    preds = []
    with torch.no_grad():
        for _ in range(12): preds.append(net(batch()))
    return preds[0].mean().item()
for _ in range(3):
    step(); step()
    evaluate()
""",
}
"""Lists that were freed before the end; moved to the CPU by `.cpu()` behind `net(batch())`."""

SILENT = {
    "models that are built, trained and dropped": TRAINED + "for _ in range(5): Fold().fit()",
    "models that are trained without an optimizer of their own": TRAINED
    + "folds = [nn.Linear(512, 4096).cuda() for _ in range(5)]\nfor one in folds:\n"
    "    for _ in range(3): one(batch()).square().mean().backward(); one.zero_grad()",
    "a deque that is not full yet, and will fit": "last = collections.deque(maxlen=64)"
    + evaluation("last.append(net(batch()))"),
    "a cache with a limit that is not full yet": CACHE.replace("None", "64")
    + evaluation("embed(i)"),
    "a deque with a bound": "last = collections.deque(maxlen=5)"
    + evaluation("last.append(net(batch()))", 20),
    "a buffer that is full": "buffer = []"
    + evaluation("buffer.append(batch())\n        if len(buffer) > 5: buffer.pop(0)\n"
                 "        net(buffer[0])", 20),
    "data that is loaded first": "data = [batch() for _ in range(12)]\nfor x in data:\n"
    "    net(x).square().mean().backward(); optimizer.step(); optimizer.zero_grad()",
    "data that is loaded and converted": "data = []\nfor _ in range(12):\n"
    "    data.append(torch.zeros(1 << 20, dtype=torch.uint8, device='cuda').float() / 255)",
    "features that are trained on": "feats = []"
    + evaluation("feats.append(net(batch()))")
    + "head = nn.Linear(1024, 8).cuda()\nfor x in feats: head(x).square().mean().backward()",
    "layers that are built": "layers = [nn.Linear(1024, 1024).cuda() for _ in range(12)]",
    "layers that are called one by one": """
layers, hidden, x = [nn.Linear(1024, 1024).cuda() for _ in range(12)], [], net(batch())
with torch.no_grad():
    for layer in layers:
        x = layer(x.detach()); hidden.append(x)
""",
    "an unrolled recurrence": """
cell = nn.GRUCell(512, 1024).cuda()
for _ in range(3):
    h, outs = None, []
    for _ in range(8):
        h = cell(batch(), h); outs.append(h)
    torch.stack(outs).square().mean().backward()
    cell.zero_grad()
""",
    "rollouts that are learned from": """
for _ in range(3):
    actions = []
    with torch.no_grad():
        for _ in range(10): actions.append(net(batch()))
    net(batch()).sub(torch.stack(actions).mean(0)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
""",
    "views of each batch": evaluation(
        "x, views = batch(), []\n        for k in range(6): views.append(net(x.roll(k, 1)))", 5
    ),
    "an average": "mean = 0" + evaluation("mean = mean * 0.9 + net(batch()) * 0.1"),
    "a bank of a fixed size": "bank = torch.zeros(0, 1024, device='cuda')\nfor _ in range(14):\n"
    "    bank = torch.cat((bank, step()))[-2048:].clone()",
    "a sequence that decoding makes longer": """
seq, lm = torch.randn(64, 16, 512, device="cuda"), nn.Linear(512, 512).cuda()
with torch.no_grad():
    for _ in range(20):
        out = lm(seq); probs = out.softmax(-1); seq = torch.cat([seq, out[:, -1:]], 1)
""",
}  # fmt: skip
