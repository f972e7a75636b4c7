"""Variables of one iteration that live through the next one's forward."""

import pytest

from nbmem.capture.graphs.saved_tensors import why_unreadable
from tests.tips.measure import tip_and_saving
from tests.tips.programs import MODEL

NET = MODEL + (
    """
class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

    def forward(self, x):
        kept = []
        for part in self.parts:
            x = part(x).relu_()
            kept.append(x)
        with torch.no_grad():
            torch.cat([x] * 16).mean()
        return x.mean(), kept
"""
)
LOOP = """
model = Skips().cuda()
sgd = torch.optim.SGD(model.parameters())
for _ in range(3):
    out = model(batch(32768, 512))
    out[0].backward()
    sgd.step()
    sgd.zero_grad()
    {end}
"""
IN_FUNCTION = "def main():" + LOOP.replace("\n", "\n    ") + "\nmain()"
HEALTHY = {
    "the bytes are few": LOOP.replace("32768", "8192").format(end="pass"),
    "a number is kept": LOOP.format(end="out = out[0].item()"),
    "the peak is in backward": "model = net(1024, 8)\n"
    "sgd = torch.optim.SGD(model.parameters())\nfor _ in range(3):\n"
    "    out = model(batch(8192))\n    out.square().mean().backward()\n    sgd.step()\n"
    "    sgd.zero_grad()",
    "a prediction": "model = Skips().cuda().eval()\nfor _ in range(3):\n    with torch.no_grad():\n"
    "        out = model(batch(32768, 512))",
}


def said(trace):
    return [f for f in trace.report().findings if f.rule == "second_step_peak"]


@pytest.mark.parametrize("loop", [LOOP, IN_FUNCTION])
def test_an_output_that_lives_through_the_next_forward(run, loop):
    codes = (loop.format(end=end) for end in ("pass", "del out"))
    tip, saving = tip_and_saving(run, "second_step_peak", codes, before=NET, card="T4")
    assert tip.low == tip.high == saving
    assert tip.code.startswith("del out ")


ATTRIBUTE = """
class Trainer:
    out = None

    def step(self, model, sgd):
        out = model(batch(32768, 512))
        out[0].backward()
        sgd.step()
        sgd.zero_grad()
        {keep}

model, trainer = Skips().cuda(), Trainer()
sgd = torch.optim.SGD(model.parameters())
for _ in range(4):
    trainer.step(model, sgd)
"""
PATH = """
class Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.path = [x * 2 for _ in range(8)]   # not freed with the graph's saved tensors
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad
"""


def test_the_graph_of_an_attribute_that_lives_through_the_next_forward(run):
    if reason := why_unreadable():
        pytest.skip(reason)
    before = NET.replace("return x.mean(), kept", "return (Solve.apply(x).mean(),)") + PATH
    ends = ("self.out = out[0]", "self.out = out[0].detach()")
    codes = (ATTRIBUTE.format(keep=keep) for keep in ends)
    tip, saving = tip_and_saving(run, "second_step_peak", codes, before=before, card="T4")
    assert tip.low == tip.high == saving + 512, "the number itself stays"
    assert tip.code.startswith("trainer.out = trainer.out.detach() ")


def test_an_attribute_is_deleted_not_its_object(run):
    trace, _ = run(ATTRIBUTE.format(keep="self.out = out"), before=NET, card="T4")
    (tip,) = said(trace)
    assert tip.code.startswith("del trainer.out ")


@pytest.mark.parametrize("name", HEALTHY)
def test_a_loop_whose_peak_needs_all_that_lives_is_not_told(run, name):
    trace, _ = run(HEALTHY[name], before=NET, card="T4")
    assert said(trace) == []


EVALUATIONS = """
def run(steps=3):
    for _ in range(steps):
        seen = model(batch(65536))
        seen.square().mean().backward()
        sgd.step()
        sgd.zero_grad()
    {before}
    with torch.no_grad():
        for _ in range(4):
            {keep}(model(batch(131072)).mean(1, keepdim=True).repeat(1, 1024)[:32768] * 1)

model, outputs, labels = net(1024, 2), [], []
sgd = torch.optim.SGD(model.parameters())
for _ in range(3):
    outputs.clear()
    labels.clear()
    run()
    {behind}
"""
OF_TRAINING = EVALUATIONS.format(before="{}", keep="len", behind="pass")
OF_EVALUATION = EVALUATIONS.format(before="del seen", keep="outputs.append", behind="{}") + "run()"


@pytest.mark.parametrize(
    ("code", "cure"),
    [(OF_TRAINING, "del seen"), (OF_EVALUATION, "outputs.clear()")],
    ids=["of training", "of an evaluation"],
)
def test_what_lies_beside_the_other_part_of_a_program(run, code, cure):
    trace, _ = run(code.format("pass"), before=MODEL, card="RTX 3070")
    (tip,) = said(trace)
    mended, _ = run(code.format(cure), before=MODEL, card="RTX 3070")
    assert said(mended) == []
    assert tip.title.startswith(f"`{cure}` ")
    if cure.startswith("del"):
        gain = trace.report().peak.allocated - mended.report().peak.allocated
        assert tip.low == tip.high == gain
    else:
        assert tip.low == tip.high == 4 * 32768 * 1024 * 4


def test_labels_that_a_training_may_use_are_not_told(run):
    code = OF_EVALUATION.format("pass").replace("outputs.append", "labels.append")
    trace, _ = run(code, before=MODEL, card="RTX 3070")
    assert said(trace) == []


def test_a_second_iteration_that_was_recorded_is_not_predicted(run):
    code = (
        "class Run:\n    def step(self):\n        adam = torch.optim.Adam(model.parameters())\n"
        "        model(batch()).mean().backward()\n        adam.step()\n        adam.zero_grad()\n"
        "model = net()\nfor _ in range(3):\n    Run().step()"
    )
    trace, _ = run(code, before=MODEL, card="RTX 3070")
    assert said(trace) == []
