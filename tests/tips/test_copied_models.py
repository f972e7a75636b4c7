"""Copies of a model's weights and data are told with their bytes."""

import pytest

from tests.tips.programs import MODEL

BEFORE = MODEL + (
    """
import copy

plain_net, plain_batch = net, batch
net = lambda width=4096, depth=4: plain_net(width, depth)
batch = lambda rows=256, width=4096: plain_batch(rows, width)

class Holder:
    pass

class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = net().requires_grad_(False)
        self.own = nn.Linear(4096, 4096).cuda()

    def forward(self, x):
        return self.base(x) + self.own(x)

holder = Holder()
"""
)
STEPS = """
sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])
for _ in range(2):
    with torch.no_grad():
        {goal}
    model(batch()).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""
AT_THE_END = {
    "an attribute that is not called": (
        "model = net()\nholder.twin = copy.deepcopy(model)" + STEPS.format(goal="pass"),
        "`holder.twin` is a second copy of model that is not called",
    ),
    "frozen weights of a reference": (
        "model = Adapted()\nreference = copy.deepcopy(model)"
        + STEPS.format(goal="reference(batch())"),
        "`reference` has the frozen weights of `model` again",
    ),
    "an average with the data": (
        (
            "model = net()\nmodel.rows = torch.zeros(65536, 1024, device='cuda')\n"
            f"average = copy.deepcopy(model){STEPS.format(goal='pass')}"
        ),
        "`average` is a copy of `model` with its data",
    ),
    "an attribute that prepared the rest": (
        (
            "holder.first, holder.rest = net(), net(4096, 2)\nwith torch.no_grad():\n"
            "    x = holder.first(batch())\n    for _ in range(6):\n        x = holder.rest(x)"
        ),
        '`holder.first.to("cpu")` gives back',
    ),
}
BUILT = """
def score(model):
    {twin}
    with torch.no_grad():
        return twin(batch(8192)).mean().item()

model = net()
sgd = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(batch()).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
    score(model)
"""
SILENT = {
    "a reference of other weights": "model, reference = Adapted(), net()"
    + STEPS.format(goal="reference(batch())"),
    "an average": "model = net()\nholder.average = copy.deepcopy(model)"
    + STEPS.format(goal="pass"),
    "a twin that is called": "model = net()\nholder.twin = copy.deepcopy(model)"
    + STEPS.format(goal="holder.twin(batch())"),
    "a model whose layers are called one by one": """
model, other = Adapted(), Adapted().requires_grad_()
for _ in range(2):
    model(batch()).square().mean().backward()
    (other.base(batch()) + other.own(batch())).square().mean().backward()
""",
    "parts that take turns": "holder.first, holder.rest = net(), net(4096, 2)\n"
    "with torch.no_grad():\n    for _ in range(6):\n        holder.rest(holder.first(batch()))",
}


def said(trace):
    return [f for f in trace.report().findings if f.rule == "two_models"]


@pytest.mark.parametrize("name", AT_THE_END)
def test_the_code_of_the_tip_frees_what_was_promised(run, name):
    import torch

    code, title = AT_THE_END[name]
    trace, names = run(code, before=BEFORE, card="RTX 3070")
    (tip,) = said(trace)
    assert tip.title.startswith(title)
    before = torch.cuda.memory_allocated()
    exec(tip.code, names)
    names.pop("weight", None)
    assert before - torch.cuda.memory_allocated() == tip.low == tip.high > 16 << 20


@pytest.mark.parametrize("name", SILENT)
def test_a_copy_in_use_is_not_told(run, name):
    trace, _ = run(SILENT[name], before=BEFORE, card="RTX 3070")
    assert trace.report().peak.allocated > 32 << 20
    assert said(trace) == []


def test_a_model_that_each_evaluation_builds_again(run):
    trace, _ = run(BUILT.format(twin="twin = copy.deepcopy(model)"), before=BEFORE, card="RTX 3070")
    (tip,) = said(trace)
    cured, _ = run(BUILT.format(twin="twin = model"), before=BEFORE, card="RTX 3070")
    gain = trace.report().peak.allocated - cured.report().peak.allocated
    assert tip.low == tip.high == gain


def test_a_model_that_a_function_keeps_behind_its_last_call(run):
    code = (
        "def prepare():\n    first = net()\n    with torch.no_grad():\n"
        "        rows = [first(batch()).cpu() for _ in range(3)]\n        {release}\n"
        "        rest = net(4096, 2)\n        for _ in range(3):\n            rest(batch(4096))\n"
        "prepare()"
    )
    trace, _ = run(code.format(release="pass"), before=BEFORE, card="RTX 3070")
    (tip,) = said(trace)
    mended, _ = run(code.format(release="del first"), before=BEFORE, card="RTX 3070")
    assert said(mended) == []
    gain = trace.report().peak.allocated - mended.report().peak.allocated
    assert tip.title.startswith("`del first` ")
    assert tip.low == tip.high == gain
