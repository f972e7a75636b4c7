"""Gradients with a graph: what they keep, and what clearing them gives back."""

import gc

import pytest

from nbmem.capture.graphs.saved_tensors import why_unreadable
from tests.tips.programs import MODEL

torch = pytest.importorskip("torch", reason="the programs are torch programs")
pytestmark = pytest.mark.filterwarnings("ignore:Using backward:UserWarning")

if reason := why_unreadable():
    pytest.skip(reason, allow_module_level=True)

REBUILT = """
for _ in range(4):
    model = net(depth=3)
    loss = model(batch()).square().mean()
    loss.backward(create_graph=True)
    penalty = sum(p.grad.square().sum() for p in model.parameters())
    penalty.backward()
    {cure}
"""
STEPPED = """
for _ in range(4):
    model = net(depth=3)
    optimizer = torch.optim.Adam(model.parameters())
    model(batch()).square().mean().backward(create_graph=True)
    optimizer.step()
    {cure}
"""
IN_A_FUNCTION = """
def trial():
    model = net(depth=3)
    model(batch()).square().mean().backward(create_graph=True)
    norm = float(sum(p.grad.norm() for p in model.parameters()))
    {cure}
    return norm
norms = [trial() for _ in range(3)]
"""
ADDED_UP = """
model = net(depth=3)
for _ in range(6):
    loss = model(batch()).square().mean()
    loss.backward(create_graph=True)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    {cure}
"""
CURE = "for p in model.parameters(): p.grad = None"
SILENT = {
    "a penalty by autograd.grad": """
model = net(depth=3)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    x = batch().requires_grad_()
    score = model(x).mean()
    (slope,) = torch.autograd.grad(score, x, create_graph=True)
    (score + slope.square().sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "cleared in each step": """
model = net(depth=3)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    model(batch()).square().mean().backward(create_graph=True)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "rebuilt without a graph": REBUILT.replace("create_graph", "retain_graph")
    .replace("penalty.backward()", "penalty")
    .format(cure=""),
    "added up without a graph": ADDED_UP.replace("create_graph", "retain_graph").format(cure=""),
}


def tips(trace):
    return [f for f in trace.report().findings if f.rule == "gradient_cycle"]


def at_end(trace):
    return trace.report().ledger_at_end.allocated


def peak(trace):
    return trace.report().peak.allocated


@pytest.mark.parametrize(
    ("code", "measured"),
    [(REBUILT, peak), (STEPPED, peak), (IN_A_FUNCTION, at_end), (ADDED_UP, at_end)],
    ids=["rebuilt", "stepped", "in a function", "added up"],
)
def test_the_cure_leaves_as_much_less_as_was_promised(run, code, measured):
    trace, _ = run(code.format(cure=""), before=MODEL)
    cured, _ = run(code.format(cure=CURE), before=MODEL)
    (finding,) = trace.report().findings
    assert finding.rule == "gradient_cycle"
    assert "for p in model.parameters()" in finding.code
    assert finding.low == finding.high
    less = measured(trace) - measured(cured)
    assert less == pytest.approx(finding.low, rel=1e-4 if measured is peak else 0)


@pytest.mark.parametrize("case", SILENT)
def test_gradients_that_are_cleared_or_have_no_graph_are_left_alone(run, case):
    trace, _ = run(SILENT[case], before=MODEL)
    assert tips(trace) == []


def test_dead_models_are_found_where_the_collector_finds_nothing(run):
    trace, _ = run(IN_A_FUNCTION.format(cure=""), before=MODEL)
    (finding,) = tips(trace)
    before = torch.cuda.memory_allocated()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    for thing in gc.get_objects():
        if type(thing) is torch.nn.Parameter:
            thing.grad = None
    assert before - torch.cuda.memory_allocated() == finding.low
