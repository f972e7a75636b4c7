"""DeepSpeed's ZeRO keeps shards, gathered parameters and buckets: each is what its records say."""

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="the recorder watches torch")

import nbmem  # noqa: E402
from nbmem import virtual  # noqa: E402
from nbmem.core.categories import Category  # noqa: E402
from nbmem.core.names import ZERO_BUCKET  # noqa: E402
from nbmem.ledger.books import Books  # noqa: E402

nn, C = torch.nn, Category
WIDTH, RANKS = 1024, 4
WEIGHT = 4 * WIDTH * WIDTH
BUCKET = 1 << 22
"""Elements."""
MODULE = "deepspeed.runtime.zero.stage_1_and_2"
pytestmark = pytest.mark.torch


class Kept:
    """An object with these attributes."""

    def __init__(self, **kept):
        self.__dict__.update(kept)


class DeepSpeedZeroOptimizer:
    """Sends gradients from one bucket, as stages 1 and 2 do: it is there in a backward only."""

    def __init__(self):
        self.ipg_buckets = {torch.float32: Kept(buffer=[])}

    def average_tensor(self, tensor):
        return tensor


class Engine(nn.Module):
    """What `deepspeed.initialize` gives back."""

    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.optimizer = module, optimizer

    def forward(self, x):
        if not self.module.weight.numel():
            self.module.weight.data = torch.empty(WIDTH, WIDTH, device="cuda")
        return self.module(x)


@pytest.fixture(autouse=True)
def card(monkeypatch):
    """DeepSpeed's modules, as far as they are looked up, beside a card."""
    for name in ("deepspeed", MODULE):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[MODULE].DeepSpeedZeroOptimizer = DeepSpeedZeroOptimizer
    with virtual.activated("A100 80GB"):
        yield


def held(trace):
    """The bytes of each category at the end, and the names of what is communication."""
    books = Books(trace.session)
    at = len(trace.session.devices[0].events)
    named = {}
    for row in books.live(at).tolist():
        name, size = books.name(row), int(books.allocations.requested[row])
        named.setdefault(C(books.category[row]), {}).setdefault(name, size)
    return named


def test_shards_are_weights_and_what_is_gathered_is_communication():
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = Kept(
        grad_partitions_flat_buffer=torch.zeros(WIDTH * WIDTH // RANKS, device="cuda"),
        ipg_buckets={torch.float32: Kept(buffer=torch.empty(BUCKET, device="cuda"))},
    )
    model.weight.ds_tensor = torch.zeros(WIDTH * WIDTH // RANKS, device="cuda")
    model.weight.data = torch.empty(0, device="cuda")
    names = {"engine": Engine(model, optimizer)}
    with nbmem.trace("cell", namespace=names) as trace:
        names["engine"](torch.ones(8, WIDTH, device="cuda")).sum().backward()
        model.weight.grad = None
    found = held(trace)
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
    books = Books(trace.session)
    (rows,) = (books.allocations.requested == 4 * BUCKET).nonzero()
    assert [C(books.category[row]) for row in rows] == [C.COMMUNICATION] * 2
    assert {books.name(row) for row in rows.tolist()} == {f"{ZERO_BUCKET} ({BUCKET},) float32"}


def test_a_model_of_another_package_keeps_its_names():
    model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        model(torch.ones(8, WIDTH, device="cuda"))
    assert set(held(trace)[C.WEIGHTS]) == {f"model.weight ({WIDTH}, {WIDTH}) float32"}
