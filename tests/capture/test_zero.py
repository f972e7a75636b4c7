"""DeepSpeed's ZeRO: shards, gathered parameters and buckets."""

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import ZERO_BUCKET
from nbmem.report.ledger.card_ledger import CardLedger
from tests import fake_deepspeed as deepspeed
from tests.fake_deepspeed import DeepSpeedZeroOptimizer, Engine, Kept

nn, C = torch.nn, Category
WIDTH, RANKS = 1024, 4
WEIGHT = 4 * WIDTH * WIDTH
BUCKET = 1 << 22
"""Elements."""
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def card(monkeypatch):
    """A card, beside DeepSpeed."""
    deepspeed.imported(monkeypatch)
    with virtual.activated("A100 80GB"):
        yield


def bytes_by_category(trace):
    """Return final bytes by category and name."""
    card_ledger = CardLedger(trace.session)
    at = len(trace.session.devices[0].events)
    named = {}
    for row in card_ledger.live(at).tolist():
        name, size = card_ledger.name(row), int(card_ledger.allocations.requested[row])
        named.setdefault(C(card_ledger.category[row]), {}).setdefault(name, size)
    return named


def test_shards_are_weights_and_what_is_gathered_is_communication():
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = Kept(
        grad_partitions_flat_buffer=torch.zeros(WIDTH * WIDTH // RANKS, device="cuda"),
        ipg_buckets={torch.float32: Kept(buffer=torch.empty(BUCKET, device="cuda"))},
    )
    model.weight.ds_tensor = torch.zeros(WIDTH * WIDTH // RANKS, device="cuda")
    model.weight.ds_shape = model.weight.shape
    model.weight.data = torch.empty(0, device="cuda")
    names = {"engine": Engine(model, optimizer)}
    with nbmem.trace("cell", namespace=names) as trace:
        names["engine"](torch.ones(8, WIDTH, device="cuda")).sum().backward()
        model.weight.grad = None
    found = bytes_by_category(trace)
    shape, shard = f"({WIDTH}, {WIDTH}) float32", f"({WIDTH * WIDTH // RANKS},) float32"
    assert found[C.WEIGHTS] == {f"engine.module.weight {shard}": WEIGHT // RANKS}
    gradients = f"engine.optimizer.grad_partitions_flat_buffer {shard}"
    assert found[C.GRADIENTS] == {gradients: WEIGHT // RANKS}
    assert found[C.COMMUNICATION] == {
        f"engine.module.weight gathered {shape}": WEIGHT,
        f"engine: {ZERO_BUCKET} ({BUCKET},) float32": 4 * BUCKET,
    }


def test_a_bucket_stays_communication_while_gradients_are_slices_of_it():
    model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
    optimizer = DeepSpeedZeroOptimizer()
    names = {"engine": Engine(model, optimizer)}
    with nbmem.trace("cell", namespace=names) as trace:
        for _ in range(2):
            names["engine"](torch.ones(8, WIDTH, device="cuda")).sum().backward()
            buffer = torch.empty(BUCKET, device="cuda")
            optimizer.ipg_buckets[torch.float32].buffer = [buffer]
            model.weight.grad = buffer[: WIDTH * WIDTH].view(WIDTH, WIDTH)
            optimizer.average_tensor(buffer)
            torch.optim.SGD(model.parameters()).step()
            model.weight.grad = buffer = None
            optimizer.ipg_buckets[torch.float32].buffer = []
    card_ledger = CardLedger(trace.session)
    (rows,) = (card_ledger.allocations.requested == 4 * BUCKET).nonzero()
    assert [C(card_ledger.category[row]) for row in rows] == [C.COMMUNICATION] * 2
    assert {card_ledger.name(row) for row in rows.tolist()} == {
        f"{ZERO_BUCKET} ({BUCKET},) float32"
    }


def test_a_model_of_another_package_keeps_its_names():
    model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        model(torch.ones(8, WIDTH, device="cuda"))
    assert set(bytes_by_category(trace)[C.WEIGHTS]) == {f"model.weight ({WIDTH}, {WIDTH}) float32"}
