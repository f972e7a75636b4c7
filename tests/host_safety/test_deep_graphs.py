"""Deep graphs that were traced are freed without a stack overflow."""

import gc
import subprocess
import sys

import torch

from nbmem import virtual
from nbmem.capture.interpreter import class_kinds
from nbmem.capture.tensors import autograd_graphs

LAYERS = 20_000
"""Two nodes each: 38,000 that Python has seen end the process, with 8 MiB of stack."""
PROGRAM = f"""
import torch, nbmem

weight = torch.ones(4, 4, requires_grad=True)
model = torch.nn.Linear(4, 4)
with nbmem.trace("deep", namespace=globals()) as trace:
    y = torch.ones(2, 4)
    for _ in range({LAYERS}):
        y = torch.relu(y @ weight)
    loss = y.sum()
    loss.backward()
    kept = model(torch.ones(2, 4))
    for _ in range({LAYERS}):
        kept = torch.relu(kept @ weight)
del y, loss
del kept
assert any("operations in a row" in note for note in trace.session.notes), trace.session.notes
print("alive")
"""


def test_a_deep_graph_that_was_traced_can_be_freed():
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


def chain(first, weight, operations):
    for _ in range(operations // 2):
        first = torch.relu(first @ weight)
    return first


def nodes_seen():
    return sum(class_kinds.is_node(type(obj)) for obj in gc.get_objects())


def test_a_chain_is_followed_only_so_far(monkeypatch):
    monkeypatch.setattr(autograd_graphs, "MAX_DEPTH", 40)
    weight = torch.ones(4, 4, requires_grad=True)
    end = chain(torch.ones(2, 4), weight, 400)
    before = nodes_seen()
    reader = autograd_graphs.Graphs(torch)
    reader.reachable_nodes([end.grad_fn])
    assert reader.deep
    assert 40 <= nodes_seen() - before <= 42


def test_many_short_graphs_are_followed_to_their_ends(monkeypatch):
    monkeypatch.setattr(autograd_graphs, "MAX_DEPTH", 200)
    weight = torch.ones(4, 4, requires_grad=True)
    total = torch.zeros(())
    for _ in range(100):
        total = total + chain(torch.ones(2, 4), weight, 40).sum()  # the leak of every forum
    reader = autograd_graphs.Graphs(torch)
    found = reader.reachable_nodes([total.grad_fn])
    assert not reader.deep
    assert len(found) == 100 * (40 + 2) + 1  # the weight's own


def test_running_totals_that_are_asked_one_by_one_end_as_well(monkeypatch):
    monkeypatch.setattr(autograd_graphs, "MAX_DEPTH", 40)
    weight = torch.ones(4, 4, requires_grad=True)
    ends = [torch.ones(2, 4)]
    for _ in range(40):
        ends.append(chain(ends[-1], weight, 20))
    before = nodes_seen()
    reader = autograd_graphs.Graphs(torch)
    own = len(reader.reachable_nodes([end.grad_fn for end in ends[1:2]]))
    for end in ends[2:]:
        reader.reachable_nodes([end.grad_fn])
    assert own == 21
    assert reader.deep
    assert nodes_seen() - before < 3 * 40 + len(ends)


def test_a_virtual_card_leaves_the_nodes_of_a_graph_unseen():
    with virtual.activated("H100 80GB"):
        layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).cuda()
        x = torch.ones(2, 4, device="cuda")
        for _ in range(10):
            x = x + layer(x) * layer(x)
        before = nodes_seen()
        loss = x.sum()
        loss.backward()
        assert nodes_seen() == before
