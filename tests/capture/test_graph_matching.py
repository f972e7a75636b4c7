"""Graphs that match one already read get its names at once."""

import pytest
import torch

from nbmem.capture.devices.host import Host
from nbmem.capture.graphs.graph_matching import GraphPattern
from nbmem.capture.graphs.saved_tensors import GraphWalk, ModulePath, saved_tensors, why_unreadable
from nbmem.capture.tensors.active_registry import activate_registry
from nbmem.capture.tensors.autograd_graphs import edges_of
from nbmem.capture.tensors.storage_registry import StorageRegistry

pytestmark = pytest.mark.skipif(why_unreadable() is not None, reason="this torch shows no graphs")
ROWS, WIDE = 4, 8


class Experts(torch.nn.Module):
    """Two equal layers, of which one is used."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDE, WIDE) for _ in range(2))

    def forward(self, x, chosen=0, times=1):
        for _ in range(times):
            x = self.layers[chosen](x).relu()
        return torch.nn.functional.dropout(x, 0.5).square().sum()


@pytest.fixture
def model():
    return Experts()


@pytest.fixture
def read(model):
    """Read a whole graph; return its saved tensors and the walk."""
    members = {id(p): ModulePath("model", f".{n}") for n, p in model.named_parameters()}

    def whole(loss):
        walk = GraphWalk([loss], lambda parameter, lookup: members.get(id(parameter)))
        return list(saved_tensors(walk)), walk

    with activate_registry(StorageRegistry(torch, Host())):
        yield whole


def batch(rows=ROWS):
    return torch.randn(rows, WIDE, requires_grad=True)  # a leaf of its own at each step


def test_the_next_step_has_the_names_and_places_that_a_search_finds(model, read):
    first, walk = read(model(batch(), times=2))
    pattern = GraphPattern(walk)
    del walk
    loss = model(batch(), times=2)
    found = pattern.saved(edges_of([loss]))
    assert found == read(loss)[0]
    assert [one.seen.name for one in found] == [one.seen.name for one in first]
    assert {one.owner for one in found} >= {"model"}


def test_another_length_has_its_own_form(model, read):
    pattern = GraphPattern(read(model(batch()))[1])
    loss = model(batch(rows=9))
    found = pattern.saved(edges_of([loss]))
    assert found == read(loss)[0]
    assert any("(9, 8) float32" in one.seen.name for one in found)


def test_another_layer_or_another_count_is_no_such_graph(model, read):
    pattern = GraphPattern(read(model(batch(), chosen=0))[1])
    for other in (model(batch(), chosen=1), model(batch(), times=2), batch().sum()):
        assert pattern.saved(edges_of([other])) is None


def test_a_pattern_holds_nothing_of_its_graph(model, read):
    loss = model(batch())
    kept = GraphPattern(read(loss)[1])
    storage = next(kept._graphs.saved_by(loss.grad_fn.next_functions[0][0]))
    gone = storage.untyped_storage()._weak_ref()
    del loss, storage
    assert torch.UntypedStorage._expired(gone)
    torch.UntypedStorage._free_weak_ref(gone)
    assert kept.holds
