"""What a garbage collection frees is found in the history, to the byte."""

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import nbmem.api.tracing as nbmem
from tests.tips.programs import MODEL

MIB = 2**20
CYCLE = """
import gc
gc.disable()
class Node:
    pass
def lost(mib):
    node = Node()
    node.itself, node.value = node, torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def collected(run):
    """Provide collected(code): the sizes in MiB of what collections freed, by collection."""

    def sizes(code):
        trace, _ = run(code, before=MODEL + CYCLE)
        (device,) = trace.session.devices
        found = device.collected
        return [
            sorted(device.events.size[found.event[found.collection == number]] // MIB)
            for number in np.unique(found.collection)
        ]

    return sizes


def test_each_collection_has_its_own(collected):
    assert collected("lost(8)\nlost(4)\ngc.collect()\nlost(2)\ngc.collect()") == [[4, 8], [2]]


def test_a_young_collection_counts(collected):
    assert collected("lost(8)\ngc.collect(0)") == [[8]]


def test_references_free_without_the_collector(collected):
    code = (
        "x, model = torch.empty(8 << 20, device='cuda'), net()\nmodel(batch()).sum().backward()\n"
    )
    assert collected(code + "del x\ngc.collect()\ndel model\ngc.collect()") == []


def test_a_del_right_before_a_collection_does_not_count(collected):
    code = "for _ in range(3):\n    x = torch.empty(8 << 20, device='cuda')\n    lost(2)\n"
    assert collected(code + "    del x; gc.collect()") == [[2]] * 3


def test_what_lives_on_does_not_count(collected):
    assert collected("lost(8)") == []


def test_a_collection_before_the_card_is_used(collected):
    assert collected("gc.collect()\nlost(4)\ngc.collect()") == [[4]]


def test_what_another_threads_engine_may_free_does_not_count(collected):
    code = """
import threading
x = torch.ones(8, device="cuda", requires_grad=True)
def collect(grad):
    lost(4)
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
x.register_hook(collect)
(x * 2).sum().backward()
lost(2)
gc.collect()
"""
    assert collected(code) == [[2]]


def test_the_collectors_callbacks_are_as_before(run):
    before = list(gc.callbacks)
    inside = run("import gc\ncount = len(gc.callbacks)", before=MODEL)[1]["count"]
    assert inside == len(before) + 1
    assert gc.callbacks == before


def test_the_programs_own_callbacks_remain(run):
    code = "import gc\ngc.callbacks.clear()\nmine = lambda *_: None\ngc.callbacks.append(mine)"
    names = run(code, before=MODEL)[1]
    assert gc.callbacks == [names["mine"]]
    gc.callbacks.clear()


def test_the_number_of_collections_is_unchanged(run):
    code = """
import gc
gc.enable(); gc.collect()
counts = []
gc.callbacks.append(count := lambda phase, about: counts.append(about["generation"]))
kept = [[] for _ in range(30_000)]
gc.callbacks.remove(count)
"""
    traced = run(code, before=MODEL)[1]["counts"]
    names = {}
    exec(code, names)
    assert traced == names["counts"]


LOOP = """
head = nn.Linear(1024, 10).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(12):
    y = Exp.apply(torch.randn(1024, 1024, device="cuda", requires_grad=True))
    head(y).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (4, 10):
        gc.collect()
    del y
    {old}
"""
EXP = """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y
"""
FOLDS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net(1024, 4)
        self.act = {act}

    def scale(self, x):
        return x

    def forward(self, x):
        return self.act(self.body(x))

for fold in range(3):
    model = Net()
    for _ in range(2):
        model(batch(64)).sum().backward()
        model.zero_grad()
    {old}
gc.collect()
"""


def tips(run, code, before=MODEL + CYCLE):
    trace, _ = run(code, before=before)
    return [one for one in trace.report().findings if one.rule == "reference_cycle"], trace


def test_outputs_that_a_context_keeps_are_told_with_the_bytes_of_the_peak(run):
    (found, left), trace = tips(run, LOOP.replace("{old}", ""), MODEL + CYCLE + EXP)
    # Input, output and gradient of 4 and 6 steps: in a collection, the current ones are in use.
    assert found.title == (
        "The garbage collector freed 120.0 MiB that reference cycles through `ctx.y of Exp` kept, "
        "72.0 MiB of it at the peak"
    )
    assert "(1024, 1024) float32" in found.evidence
    assert left.low == 24 * MIB
    mended, _ = run(LOOP.replace("{old}", "gc.collect()"), before=MODEL + CYCLE + EXP)
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert 0.8 * saved < found.low <= found.high <= saved  # the first steps have no predecessor


@pytest.mark.parametrize("act", ["lambda x: self.scale(x)", "self.scale"])
def test_models_that_refer_to_themselves_are_told(run, act):
    code = FOLDS.replace("{act}", act)
    (found,), trace = tips(run, code.replace("{old}", ""))
    weights = 4 * (1024 * 1024 + 1024) * 4
    assert f"freed {2 * weights / MIB:.1f} MiB" in found.title
    assert "through `Net.act` kept" in found.title
    mended, _ = run(code.replace("{old}", "model = None; gc.collect()"), before=MODEL + CYCLE)
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert found.low == found.high == saved


HEALTHY = {
    "a model without cycles": "model = net()\nmodel(batch()).sum().backward()\ndel model\n",
    "a model in a cycle, deleted after its use": FOLDS.replace("{act}", "self.scale").replace(
        "{old}", "del model; gc.collect()"
    ),
    "a tree that is used as a whole": """
nodes = [Node() for _ in range(16)]
for node in nodes:
    node.all, node.value = nodes, torch.empty(4 << 20, device="cuda")
del nodes, node
""",
    "a history that ends with its epoch": """
model = net()
for epoch in range(4):
    last = None
    for step in range(4):
        node = Node()
        node.itself, node.before, node.value = node, last, model(batch(4096)).detach()
        last = node
    del last, node
    gc.collect()
""",
    "little of much": "x = torch.empty(256 << 20, device='cuda')\nlost(1)\ngc.collect()\n",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_gets_no_tip(run, name):
    assert tips(run, HEALTHY[name] + "gc.collect()\n")[0] == []


FAILS = """
try:
    {code}
finally:
    gc.collect()
"""


@pytest.mark.parametrize(("code", "told"), [("lost(512)", True), ("pass", False)])
def test_what_is_freed_only_after_the_request_had_failed_is_told(run, code, told):
    _, names = run("", before=MODEL + CYCLE)
    code += "\n    x = torch.empty(200 << 30, dtype=torch.uint8, device='cuda')"
    trace = nbmem.trace("cell", namespace=names)
    with pytest.raises(torch.OutOfMemoryError), trace:
        exec(compile(FAILS.replace("{code}", code), "train.py", "exec"), names)
    found = [one for one in trace.report().findings if one.rule == "reference_cycle"]
    assert [(one.low, one.high) for one in found] == [(512 * MIB, 512 * MIB)] * told


def test_a_program_that_goes_on_after_a_failed_request_gets_no_tip(run):
    code = "lost(512)\n    x = torch.empty(200 << 30, dtype=torch.uint8, device='cuda')"
    code = FAILS.replace("{code}", code).replace("finally", "except torch.OutOfMemoryError")
    assert tips(run, code)[0] == []


def test_no_collection_runs_between_the_program_and_its_holders(run):
    """Else garbage would be in the last reading, and have no holder."""
    code = "gc.freeze(); gc.unfreeze()   # the young generation is empty\nlost(64)\n"
    code += "gc.set_threshold(200, 1, 1); gc.enable()"
    thresholds = gc.get_threshold()
    try:
        (found,), _ = tips(run, code)
    finally:
        gc.set_threshold(*thresholds)
    assert found.low == 64 * MIB
    assert "through `Node.itself`" in found.title
