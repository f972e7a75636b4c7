"""Models that the program went on without are told with their bytes."""

import gc

import pytest

from tests.tips.measure import tip_and_saving
from tests.tips.programs import MODEL

TRAINER = (
    MODEL
    + """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.adam = torch.optim.Adam(net.parameters())

    def train(self, steps=2):
        for _ in range(steps):
            self.net(batch()).square().mean().backward()
            self.adam.step()
            self.adam.zero_grad()
"""
)
STEPS = """
for _ in range(2):
    {loss}.backward()
    {optimizer}.step()
    {optimizer}.zero_grad()
"""
FORMER = {
    "a trainer keeps its model": (
        "first = Trainer(net())\nfirst.train()\nsecond = Trainer(net(depth=5))\nsecond.train()",
        "del first",
    ),
    "a name and a trainer keep the model": (
        (
            "small = net()\ncoach = Trainer(small)\ncoach.train()\n"
            "other = Trainer(net(depth=5))\nother.train()"
        ),
        "del coach, small",
    ),
    "a model with its gradients, another class": (
        "first = net()\nfirst(batch()).sum().backward()\n"
        "second = nn.Linear(1024, 4096).cuda()\nsgd = torch.optim.SGD(second.parameters())\n"
        + STEPS.format(loss="second(batch()).sum()", optimizer="sgd"),
        "del first",
    ),
}
USED = {
    "a teacher": "first, second = net(), Trainer(net())\nfor _ in range(2):\n"
    "    with torch.no_grad():\n        goal = first(batch())\n    second.train(1)",
    "a critic that was trained before": "judge, maker = Trainer(net()), Trainer(net())\n"
    "judge.train()\nfor _ in range(2):\n    maker.train(1)\n    judge.train(1)",
    "an ensemble that is evaluated together": "one, two = Trainer(net()), Trainer(net())\n"
    "one.train()\ntwo.train()\nwith torch.no_grad():\n    x = one.net(batch()) + two.net(batch())",
    "an ensemble in a list": "nets = [Trainer(net()) for _ in range(3)]\n"
    "for one in nets:\n    one.train()",
    "features of a frozen net that is called again": "body, head = net(), Trainer(net())\n"
    "with torch.no_grad():\n    x = body(batch())\nhead.train()\nwith torch.no_grad():\n"
    "    y = head.net(body(batch()))",
    "a small encoder of a text": "encoder, unet = net(256), Trainer(net(1024, 8))\n"
    "with torch.no_grad():\n    text = encoder(batch(64, 256))\nunet.train()",
    "the best so far": "best = Trainer(net())\nbest.train()\nlast = Trainer(net())\nlast.train()",
    "two that are compared": "one, two = net().eval(), net().eval()\nwith torch.no_grad():\n"
    "    x = one(batch())\n    y = two(batch())",
    "a part that the next model goes on with": "body = net()\n"
    "first = nn.Sequential(body, net(depth=1))\nTrainer(first).train()\n"
    "last = nn.Sequential(body, net(depth=2))\nTrainer(last).train()",
}
BUILT_AGAIN = """
build = lambda depth: nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(depth))).cuda()
model = build(6)
model(batch(16)).sum().backward()
{between}model = build(5)
model(batch(16)).sum().backward()
"""
TRAINED_AGAIN = """
model = net()
adam = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(batch(16)).sum().backward()
    adam.step()
    adam.zero_grad()
{between}model = net(depth=20)
adam = torch.optim.Adam(model.parameters())
with torch.no_grad():
    model(batch(16))
"""
CONVERTED = {
    "in half precision": "model = copy.deepcopy(model).half()",
    "from its own weights": "other = net()\nother.load_state_dict(model.state_dict())\n"
    "model = other",
}
SWITCHED = """
class Manager:
    def switch(self, depth):
        self.model = self.build(depth)

    def build(self, depth):
        return net(depth=depth)

manager = Manager()
with torch.no_grad():
    for depth in (4, 5, 4):
        if hasattr(manager, "model"):
            {between}
        manager.switch(depth)
        manager.model(batch())
"""
CACHE = """
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    {decorator}
    def grid(self, n):
        return torch.arange(n, device="cuda")

    def forward(self, x):
        return self.body(x) + self.grid(1024)

for _ in range(3):
    model = Detector().eval()
    with torch.no_grad():
        model(batch())
    del model
"""


def said(trace):
    return [f for f in trace.report().findings if f.rule == "two_models"]


def freed(names, code):
    import torch

    before = torch.cuda.memory_allocated()
    exec(code, names)
    gc.collect()
    return before - torch.cuda.memory_allocated()


@pytest.mark.parametrize("name", FORMER)
def test_a_model_that_another_replaced_is_told_with_all_its_holders(run, name):
    code, action = FORMER[name]
    trace, names = run(code, before=TRAINER)
    (finding,) = said(trace)
    assert finding.code == action
    assert freed(names, finding.code) == finding.low == finding.high


def test_two_models_that_predict_one_after_the_other(run):
    code = "with torch.device('cuda'):\n    one = nn.Linear(4096, 57344)\n"
    code += "    two = nn.Linear(1024, 8192)\nwith torch.no_grad():\n"
    code += "    for _ in range({times}):\n        x = one(batch(8, 4096))\n"
    code += "    for _ in range({times}):\n        y = two(batch(8))"
    trace, names = run(code.format(times=2), before=MODEL, card="T4")
    (finding,) = said(trace)
    assert freed(names, finding.code) == finding.low == finding.high
    for times, card in ((1, "T4"), (2, "H100 80GB")):  # compared once; a card with room
        trace, _ = run(code.format(times=times), before=MODEL, card=card)
        assert said(trace) == []


@pytest.mark.parametrize("name", USED)
def test_a_model_in_use_is_not_told(run, name):
    trace, _ = run(USED[name], before=TRAINER)
    assert said(trace) == []


@pytest.mark.parametrize(
    ("code", "action"), [(BUILT_AGAIN, "del model"), (TRAINED_AGAIN, "del model, adam")]
)
def test_a_former_model_that_lives_while_the_next_is_built(run, code, action):
    codes = (code.format(between=between) for between in ("", f"{action}\n"))
    tip, saving = tip_and_saving(run, "two_models", codes, before=MODEL)
    assert (tip.low, tip.high, tip.code.split("   ")[0]) == (saving, saving, action)


def test_an_attribute_that_held_the_former_model_is_named(run):
    codes = (SWITCHED.format(between=between) for between in ("pass", "del manager.model"))
    tip, saving = tip_and_saving(run, "two_models", codes, before=MODEL)
    assert tip.code.split("   ")[0] == "del manager.model"
    assert (tip.low, tip.high) == (saving, saving)


@pytest.mark.parametrize("name", CONVERTED)
def test_a_model_that_is_made_of_the_former_one_is_not_told(run, name):
    code = f"import copy\nmodel = net()\nmodel(batch())\n{CONVERTED[name]}\nx = batch()"
    trace, _ = run(f"{code}\nmodel(x.to(next(model.parameters()).dtype))", before=MODEL)
    assert said(trace) == []


@pytest.mark.parametrize("size", [8, None])
def test_models_that_a_cached_method_keeps(run, size):
    cached = CACHE.format(decorator=f"@functools.lru_cache(maxsize={size})")
    trace, names = run(cached, before=MODEL + "import functools")
    (finding,) = said(trace)
    assert finding.code == "Detector.grid.cache_clear()"
    assert freed(names, finding.code) == finding.low == finding.high
    trace, _ = run(CACHE.format(decorator=""), before=MODEL)
    assert said(trace) == []


def test_a_cached_function_that_builds_the_model_is_not_told(run):
    code = "load = functools.lru_cache(net)\nfor _ in range(3):\n    load(1024)(batch())"
    trace, _ = run(code, before=MODEL + "import functools")
    assert trace.report().peak.allocated > 20 << 20
    assert said(trace) == []
