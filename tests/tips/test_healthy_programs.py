"""Healthy runs get no tip."""

import functools
import os

import pytest

from nbmem.report.analysis import card_ledger_of, report_of
from nbmem.report.tips.engine import advise
from tests.recorded_runs import NAMES, load, session_of
from tests.tips.programs import MODEL


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_run_of_a_real_card_gets_no_tip(name):
    card_ledger = card_ledger_of(session_of(load(name)))
    advice = advise(card_ledger.session, card_ledger, report_of(card_ledger))
    assert [f.title for f in advice.findings] == []
    assert advice.notes == ()


LOOP = """
model = net(1024, 6)
optimizer = torch.optim.{optimizer}
for _ in range(5):
    loss = model(batch(2048)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ADAM = "optimizer = torch.optim.Adam(model.parameters())\n"
HEALTHY = {
    "sgd": LOOP.format(optimizer="SGD(model.parameters(), lr=0.1)"),
    "momentum": LOOP.format(optimizer="SGD(model.parameters(), lr=0.1, momentum=0.9)"),
    "adamw": LOOP.format(optimizer="AdamW(model.parameters())"),
    "rmsprop": LOOP.format(optimizer="RMSprop(model.parameters())"),
    "adafactor": LOOP.format(optimizer="Adafactor(model.parameters())"),
    "running loss": """
model, running, history = net(), 0.0, []
"""
    + ADAM
    + """
for _ in range(6):
    optimizer.zero_grad()
    loss = model(batch()).square().mean()
    loss.backward()
    optimizer.step()
    running += loss.item()
    history.append(loss.detach())
""",
    "validation under no_grad": """
model = net()
"""
    + ADAM
    + """
for _ in range(3):
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            score = model(batch(1024)).mean().item()
    model.train()
""",
    "accumulation": """
model = net()
"""
    + ADAM
    + """
for _ in range(3):
    for _ in range(4):
        (model(batch()).sum() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "several losses, one backward": """
model = net()
"""
    + ADAM
    + """
for _ in range(4):
    sum(model(batch()).square().mean() for _ in range(4)).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "autocast with a scaler": """
model, scaler = net(), torch.amp.GradScaler("cuda")
"""
    + ADAM
    + """
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch(2048)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "two networks against each other": """
maker, judge = net(), net()
first = torch.optim.Adam(maker.parameters())
second = torch.optim.Adam(judge.parameters())
for _ in range(4):
    second.zero_grad()
    judge(maker(batch()).detach()).sum().backward()
    second.step()
    first.zero_grad()
    judge(maker(batch())).sum().backward()
    first.step()
""",
    "an average of the weights": """
import copy
model = net()
ema = copy.deepcopy(model).requires_grad_(False)
"""
    + ADAM
    + """
for _ in range(4):
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.01)
""",
    "a last batch that is smaller": """
model = net(1024, 6)
"""
    + ADAM
    + """
for rows in (2048, 2048, 2048, 2048, 700):
    model(batch(rows)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "prediction": """
model = net().eval()
outputs = []
with torch.inference_mode():
    for _ in range(5):
        outputs.append(model(batch(1024)).cpu())
""",
    "a checkpoint loaded by way of the CPU": """
model = net()
state = {name: value.cpu() for name, value in model.state_dict().items()}
model.load_state_dict(state)
"""
    + ADAM
    + """
for _ in range(3):
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "the best weights so far": """
import copy
model = net()
best_state = copy.deepcopy(model.state_dict())
"""
    + ADAM
    + """
for _ in range(3):
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a state_dict is no copy": """
model = net()
state = model.state_dict()
"""
    + ADAM
    + """
for _ in range(3):
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "batches that are larger each time, and what a module keeps of them": """
class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net(depth=4)

    def forward(self, x):
        self.last = x * 2
        return self.body(x)

model = Keeps()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in range(1000, 3400, 300):
    x = batch(rows)
    out = model(x)
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "keys and values that decoding makes longer": """
class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(1024, 1024), nn.Linear(1024, 1024)
        self.cache = torch.zeros(64, 0, 1024, device="cuda")

    def forward(self, x):
        self.cache = torch.cat([self.cache, self.kv(x)], 1)
        return F.scaled_dot_product_attention(self.q(x), self.cache, self.cache)

model = Attends().cuda().eval()
x = torch.randn(64, 1, 1024, device="cuda")
with torch.no_grad():
    for _ in range(24):
        x = model(x)
""",
    "data that stays on the card": """
model, data, labels = net(), batch(16384), torch.zeros(16384, device="cuda")
"""
    + ADAM
    + """
for at in range(0, 16384, 4096):
    model(data[at:at + 4096]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_gets_no_tip(run, name):
    trace, _ = run(HEALTHY[name], before=MODEL)
    assert [f.title for f in trace.report().findings] == []
    assert trace.report().peak.allocated > 20 << 20, "large enough for a tip to be worth it"


@functools.cache
def workloads():
    from tests.accuracy.workloads import CFG

    return CFG


PLAIN = [
    "nn_transformer_b32s256_adam",
    "lstm_lm_b32s128_sgd",
    "unet_b8_adam",
    "dlrm_like_b2048_adagrad",
]


@pytest.mark.torch
@pytest.mark.parametrize("name", PLAIN)
def test_a_workload_on_the_virtual_card_gets_no_tip(name):
    import nbmem.api.tracing as nbmem
    from nbmem import virtual
    from tests.accuracy.one import Run

    with virtual.activated("H100 80GB", release="2.11.0"):
        with nbmem.trace(name, namespace={}) as trace:
            Run(name).go()
        assert [f.title for f in trace.report().findings] == []
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") is None
