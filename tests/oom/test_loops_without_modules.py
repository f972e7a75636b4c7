"""What grows in a loop that calls no module is named, with its bytes an iteration."""

import pytest

from tests.oom import programs

pytestmark = pytest.mark.torch
MIB = 1 << 20
OPERATORS = """
import torch
w = torch.randn(4096, 4096, device="cuda")
outs = []
for i in range({steps}):
    a = torch.randn(16384, 4096, device="cuda")
    outs.append(torch.relu(a @ w){kept})
"""
GRAPH = """
import torch
net = torch.nn.Linear(2048, 2048).cuda()
x = torch.randn(65536, 2048, device="cuda")
with torch.no_grad():
    net(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(net(x))
outs = []
for i in range({steps}):
    graph.replay()
    outs.append(y.clone(){kept})
"""
RECURRENT = """
import torch
w = torch.randn(4096, 4096, device="cuda", requires_grad=True)
h = torch.zeros(8192, 4096, device="cuda")
for t in range({steps}):
    h = torch.tanh(h @ w)
    {cure}
"""
BUILDING = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8192, 8192, bias=False) for _ in range(400)])
with torch.device("cuda"):
    net = Net()
"""
BACKWARD = """
import torch
from torch.nn import functional as F
ws = [torch.randn(8192, 8192, device="cuda", requires_grad=True) for _ in range(34)]
x = torch.randn(64, 8192, device="cuda")
for w in ws:
    x = F.relu(x @ w)
x.sum().backward()
"""


def first_oom(code, *, fails=True):
    """Run a program on a new card.

    Return its out-of-memory error or None, the length of `outs`, and what is free in private pools.
    """
    trace, (held, free) = programs.run(
        code, fails=fails, defer=True, look=lambda names: (len(names.get("outs", ())), _pooled())
    )
    ooms = trace.report().ooms
    return (ooms[0], held, free) if ooms else (None, held, free)


def _pooled():
    """Return the free bytes in private pools, as torch's snapshot has them."""
    import torch

    segments = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] != (0, 0)]
    blocks = [block for segment in segments for block in segment["blocks"]]
    return sum(block["size"] for block in blocks if block["state"] == "inactive")


@pytest.mark.parametrize(
    ("code", "each"), [(OPERATORS, 256 * MIB), (GRAPH, 512 * MIB)], ids=["operators", "graph"]
)
def test_the_list_that_grows_is_told_and_keeping_it_on_the_host_runs_on(code, each):
    oom, held, _ = first_oom(code.format(steps=400, kept=""))
    first = oom.remedies[0]
    assert first.rule == "grows_each_step"
    assert first.title == (
        f"`outs` grows by {each // MIB}.0 MiB an iteration and holds {held * each / 1024**3:.2f} "
        "GiB: keep it on the CPU"
    )
    assert first.low == first.high == held * each
    assert "the program runs on" in first.evidence
    after, length, _ = first_oom(code.format(steps=held + 8, kept=".shape"), fails=False)
    assert (after, length) == (None, held + 8)


def test_a_graph_that_gets_longer_is_to_be_detached():
    oom, *_ = first_oom(RECURRENT.format(steps=500, cure=""))
    first = oom.remedies[0]
    assert first.rule == "graph_kept"
    assert first.title.startswith("The graph of `h` grows by 128.0 MiB an iteration and holds 14.")
    assert first.code == "h = h.detach()"
    assert first_oom(RECURRENT.format(steps=500, cure=first.code), fails=False)[0] is None


@pytest.mark.parametrize("code", [BUILDING, BACKWARD], ids=["layers", "backward"])
def test_equal_layers_are_no_iterations(code):
    oom, *_ = first_oom(code)
    assert not any("iteration" in remedy.title for remedy in oom.remedies)


def test_what_is_free_in_a_graphs_pool_is_told_apart():
    from nbmem.views.oom import figures

    oom, _, free = first_oom(GRAPH.format(steps=400, kept=""))

    rows = {name: (count, what) for name, count, what in figures(oom)}
    assert rows["in private pools"][0] == oom.pooled == free > 512 * MIB
    assert "the rest in pieces" in rows["cached"][1]
    oom, *_ = first_oom(OPERATORS.format(steps=400, kept=""))
    assert oom.pooled == 0
    assert "in private pools" not in {name for name, _, _ in figures(oom)}
