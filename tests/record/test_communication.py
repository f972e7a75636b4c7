"""DistributedDataParallel's buckets have a name, though no Python object has them."""

import os

import pytest

torch = pytest.importorskip("torch", reason="the recorder watches torch")

import nbmem  # noqa: E402
from nbmem import virtual  # noqa: E402
from nbmem.core.categories import Category  # noqa: E402
from nbmem.ledger.books import Books  # noqa: E402

nn, C = torch.nn, Category
NAME = "model: gradients' buckets"
WEIGHTS = 4 * (1000 * 4000 + 4000 * 1000 + 1000 * 500)
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def world(monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setitem(os.environ, name, value)
    monkeypatch.setitem(os.environ, "MASTER_PORT", "29577")
    with virtual.activated("A100 80GB"):
        torch.distributed.init_process_group("nccl")
        yield
        torch.distributed.destroy_process_group()


def network(**options):
    layers = (nn.Linear(1000, 4000, bias=False), nn.Linear(4000, 1000, bias=False))
    model = nn.Sequential(*layers, nn.Linear(1000, 500, bias=False)).cuda()
    return nn.parallel.DistributedDataParallel(model, device_ids=[0], **options)


def train(model, steps=3):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(64, 1000, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def communication(books, name, step):
    """Where a step's phase ends: bytes, blocks, names."""
    spans = books.session.spans
    at = next(s.last[0] for s in spans if (s.kind, s.name, s.step) == ("phase", name, step))
    rows = [r for r in books.live(at).tolist() if books.category[r] == C.COMMUNICATION]
    sizes = [int(books.allocations.requested[r]) for r in rows]
    return sum(sizes), len(sizes), {books.name(r) for r in rows}


@pytest.mark.parametrize("unused", [False, True])
def test_the_buckets_are_communication_in_every_step(unused):
    names = {}
    with nbmem.trace("cell", namespace=names) as trace:
        names["model"] = network(find_unused_parameters=unused)
        ema = {name: p.detach().clone() for name, p in names["model"].named_parameters()}
        train(names["model"])
        del ema
    books = Books(trace.session)
    assert communication(books, "backward", 0) == (WEIGHTS, 2 if unused else 1, {NAME})
    assert communication(books, "backward", 1) == (WEIGHTS, 2, {NAME})
    assert communication(books, "zero_grad", 2) == (WEIGHTS, 2, {NAME})


def test_those_of_an_earlier_cell_are_known_by_their_sum():
    model = network()
    train(model)
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        train(model)
    assert communication(Books(trace.session), "backward", 0) == (WEIGHTS, 2, {NAME})


def test_gradients_that_are_views_of_the_buckets_stay_gradients():
    model = network(gradient_as_bucket_view=True)
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        train(model)
    report = trace.report()
    assert report.ledger_at_peak[C.COMMUNICATION] == 0
    assert report.ledger_at_peak[C.GRADIENTS] == WEIGHTS
