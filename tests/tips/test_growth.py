"""What grows in any loop is told of its root holder, and nothing else is."""

import numpy as np
import pytest

import nbmem.api.tracing as nbmem
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.core.session.events import Action
from nbmem.report.analysis import card_ledger_of
from nbmem.report.analysis.growth import find_growth
from tests.tips.growing_loops import ENDED, LEAKS, NET, SILENT
from tests.tips.programs import MODEL

torch = pytest.importorskip("torch", reason="the programs are torch programs")
MIB = 1 << 20
GROWTH = ("grows_each_step", "graph_kept")


@pytest.mark.parametrize("what", LEAKS)
def test_a_leak_is_named_with_its_bytes(run, what):
    code, name, slope, held = LEAKS[what]
    trace, _ = run(code, before=NET, card="T4")
    found = [f.title for f in trace.report().findings if f.rule in GROWTH]
    assert len(found) == 1, found
    assert found[0].startswith(f"{name} grows by {slope}.0 MiB with every step and holds ")
    (growth,) = [g for g in find_growth(card_ledger_of(trace.session)) if g.slope > MIB // 2]
    assert (growth.slope, growth.held) == (slope * MIB, held * MIB)


@pytest.mark.parametrize("what", ENDED)
def test_a_list_that_has_ended_is_told_with_what_it_added_to_the_peak(run, what):
    trace, _ = run(ENDED[what], before=NET, card="T4")
    assert not [f for f in trace.report().findings if f.rule in GROWTH], "the card has room"
    (finding,) = [f for f in trace.all_tips() if f.rule in GROWTH]
    unnamed = "A list of tensors made at train.py:4 in evaluate"
    name = unnamed if "not read" in what else "`preds` in evaluate()"
    assert finding.title.startswith(f"{name} grows by 4.0 MiB with every step and held 48.0 MiB")
    mended, _ = run(
        ENDED[what].replace("net(batch())", "net(batch()).cpu()"), before=NET, card="T4"
    )
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert finding.low <= saved <= finding.high
    assert finding.high - finding.low in (0, 4 * MIB), "a variable of the loop may keep one item"


JOINED = """
def embed():
    parts = []
    with torch.no_grad():
        for _ in range(6):
            part = net(batch(4096))
            parts.append(part)
    return torch.cat(parts)
found = embed()
"""


def test_a_list_at_the_end_of_a_program_is_told_with_the_tensor_that_joins_it(run):
    trace, _ = run(JOINED, before=NET, card="T4")
    (finding,) = [f for f in trace.report().findings if f.rule in GROWTH]
    assert finding.title.startswith("`parts` in embed() grows by 16.0 MiB with every step")
    mended, _ = run(JOINED.replace("append(part)", "append(part.cpu())"), before=NET, card="T4")
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert finding.low == saved > 9 * 16 * MIB


def test_a_list_that_the_card_reads_later_is_not_told(run):
    trace, _ = run(JOINED + "best = (found @ found[:64].T).topk(4)", before=NET, card="T4")
    assert not [f for f in trace.report().findings if f.rule in GROWTH]


HOOKS = """
class Extractor:
    def __init__(self, module):
        self.handle = module.register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.features = output * 2

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU()).cuda()
for number in range({times}):
    extractor = Extractor(model[{part}])
    with torch.no_grad():
        model(batch(1024))
    {end}
del extractor
"""


def test_hooks_that_are_left_behind_are_told(run):
    trace, _ = run(HOOKS.format(times=6, part=0, end="pass"), before=NET, card="T4")
    (finding,) = [f for f in trace.report().findings if f.rule in GROWTH]
    assert finding.title.startswith("`model.0` has 6 hooks whose objects keep 24.0 MiB")
    assert (finding.low, finding.high) == (20 * MIB, 24 * MIB)


@pytest.mark.parametrize(
    "code",
    [
        HOOKS.format(times=6, part=0, end="extractor.handle.remove()"),
        HOOKS.format(times=2, part="number", end="pass"),
        HOOKS.format(times=3, part=0, end="pass"),
    ],
    ids=["removed", "one for each layer", "three with a purpose"],
)
def test_hooks_in_use_are_not_told(run, code):
    trace, _ = run(code, before=NET, card="T4")
    assert not [f for f in trace.report().findings if f.rule in GROWTH]


@pytest.mark.parametrize("what", SILENT)
def test_what_only_looks_like_growth_is_not_told(run, what):
    trace, _ = run(SILENT[what], before=NET, card="T4")
    assert [f.title for f in trace.report().findings if f.rule in GROWTH] == []
    assert trace.report().peak.allocated > 10 * MIB


LISTS = """
model, losses, feats = net(), [], []
for _ in range(6):
    images = batch()
    f = model(images)
    loss = f.square().mean()
    losses.append(loss)
    feats.append(f)
    loss.backward(retain_graph=True)
    model.zero_grad()
"""
STATE = """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.h, self.state = nn.Linear(1024, 1024), nn.Linear(1024, 1024), 0

    def forward(self, x):
        self.state = torch.tanh(self.i(x) + (self.h(self.state) if step else 0))
        return self.state

model = Cell().cuda()
for step in range(6):
    x = batch()
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    model.zero_grad()
"""


@pytest.mark.parametrize(
    ("code", "title"), [(LISTS, "`losses` and `feats` keep"), (STATE, "`model.state` keeps")]
)
def test_what_graphs_keep_belongs_to_their_holder(run, code, title):
    if reason := why_unreadable():
        pytest.skip(reason)
    trace, names = run(code, before=MODEL)
    finding = next(f for f in trace.report().findings if f.rule in GROWTH)
    assert finding.title.startswith(f"{title} the graphs of ")
    before = torch.cuda.memory_allocated()
    exec(compile(finding.code, "pasted.py", "exec"), names)
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high > 8 * MIB


RUNS_OUT = """
def evaluate():
    preds = []
    with torch.no_grad():
        while True:
            preds.append(net(batch(1 << 17)))
try:
    evaluate()
except torch.cuda.OutOfMemoryError:
    pass
"""


def test_growth_is_measured_at_an_error(run):
    trace, _ = run(RUNS_OUT, before=NET, card="T4")
    card_ledger = card_ledger_of(trace.session)
    (failed,) = np.flatnonzero(card_ledger.trace.events.action == Action.OOM).tolist()
    growth = find_growth(card_ledger, failed)[0]
    assert (growth.place, growth.where, growth.slope) == ("preds", " in evaluate()", 512 * MIB)
    assert growth.held == 512 * MIB * growth.iterations
    assert find_growth(card_ledger) == ()


def test_several_places_of_a_variable_are_named(run):
    code = """
class Cam:
    def __init__(self):
        self.activations, self.gradients, self.sizes = [], [], []

cam = Cam()
for _ in range(8):
    out = net(batch())
    cam.activations.append(out.detach())
    cam.gradients.append(out.detach() * 2)
del out
"""
    trace, _ = run(code, before=NET, card="T4")
    (found,) = [one for one in trace.report().findings if one.rule == "grows_each_step"]
    assert found.title.startswith("`cam` (`cam.activations` and `cam.gradients`) grows by ")


def test_what_one_call_returned_with_the_state_is_named_with_it(run):
    if reason := why_unreadable():
        pytest.skip(reason)
    code = """
rnn = nn.LSTM(256, 512).cuda()
hidden = (torch.zeros(1, 64, 512, device="cuda"), torch.zeros(1, 64, 512, device="cuda"))
for _ in range(8):
    out, hidden = rnn(torch.rand(50, 64, 256, device="cuda"), hidden)
"""
    trace, _ = run(code, before=MODEL)
    found = next(f for f in trace.report().findings if f.rule == "graph_kept")
    assert found.title.startswith("`out` and `hidden[")
    assert "keep the graphs of 8 forward passes: " in found.title
    assert found.code is None, "an item of a tuple cannot be assigned"


def test_the_list_of_a_function_that_failed_is_named_not_the_loops_variable(run):
    code = """
def predict():
    preds = []
    with torch.no_grad():
        while True:
            logits = net(batch(1 << 17))
            preds.append(logits)
"""
    _, names = run(code, before=NET, card="T4")
    trace = nbmem.trace("cell", namespace=names)
    with pytest.raises(torch.OutOfMemoryError) as error, trace:
        names["predict"]()
    del error
    (failed,) = trace.report().ooms
    assert failed.remedies[0].rule == "grows_each_step"
    assert failed.remedies[0].title.startswith("`preds` grows by 512.0 MiB a ")


def test_a_loop_s_name_for_the_object_with_the_list_keeps_nothing_alone(run):
    code = (
        "layers = [nn.Linear(1024, 1024).cuda() for _ in range(3)]\n"
        "for layer in layers:\n    layer.saved = []\n"
        "with torch.no_grad():\n    for _ in range(8):\n        for layer in layers:\n"
        "            layer.saved.append(layer(batch(2048))[:256] * 1)"
    )
    trace, _ = run(code, before=MODEL, card="T4")
    (finding,) = [f for f in trace.report().findings if f.rule == "grows_each_step"]
    assert finding.title.endswith("holds 24.0 MiB")
    assert finding.high == 24 * MIB


def test_models_of_a_list_that_go_back_one_by_one_are_iterations(run):
    code = (
        "models = [net(1024, 2).requires_grad_(False) for _ in range(6)]\n"
        "for model in models:\n    x = batch(2048).requires_grad_(True)\n"
        "    model(x).square().mean().backward()\n    model.kept = torch.ones_like(x)"
    )
    trace, _ = run(code, before=MODEL, card="RTX 3070")
    (finding,) = [f for f in trace.report().findings if f.rule == "grows_each_step"]
    assert finding.title.startswith("`models`")
    assert finding.high == 6 * 2048 * 1024 * 4
