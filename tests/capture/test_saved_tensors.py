"""Names of activations, from the graph that saved them."""

import gc

import pytest
import torch

import nbmem
from nbmem.capture.graphs import saved_tensors
from nbmem.capture.record import saved_tensor_log
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger

nn = torch.nn
pytestmark = [
    pytest.mark.usefixtures("card"),
    pytest.mark.torch,
    pytest.mark.skipif(
        not hasattr(torch._C._autograd.SavedTensor, "data"),
        reason="this release of torch does not show saved tensors",
    ),
]
ROW = 16 * 8 * 8 * 4  # bytes of one sample's feature map


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(1024, 10, bias=False)

    def forward(self, x):
        features = self.norm(self.conv(x)).sigmoid()
        return self.head((features * features).flatten(1))


def train(model, *batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        x = torch.randn(batch, 3, 8, 8, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def activations(trace, step):
    """Return names and bytes of activations when backward begins."""
    session = trace.session
    card_ledger = CardLedger(session)
    begin = next(
        s.first[0] for s in session.spans if (s.kind, s.name, s.step) == ("phase", "backward", step)
    )
    rows = [
        row for row in card_ledger.live(begin) if card_ledger.category[row] == Category.ACTIVATIONS
    ]
    sizes = card_ledger.allocations.requested
    return sorted((card_ledger.name(row), int(sizes[row])) for row in rows if sizes[row] > 512)


def test_each_activation_has_its_module_and_its_bytes():
    model = Net().cuda()
    with nbmem.trace("run") as trace:
        train(model, 4, 4)
    assert activations(trace, 1) == [
        ("saved after model.norm (sigmoid) (4, 16, 8, 8) float32", 4 * ROW),
        ("saved by model.head (4, 1024) float32", 4 * ROW),
        ("saved by model.norm (4, 16, 8, 8) float32", 4 * ROW),
    ]


class Tied(nn.Module):
    def __init__(self, *, head_first):
        super().__init__()
        if head_first:
            self.head = nn.Linear(64, 1000, bias=False)
        self.words = nn.Embedding(1000, 64)
        if not head_first:
            self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(self.words(tokens).sin())


@pytest.mark.parametrize("head_first", [False, True])
def test_a_tied_weight_is_the_module_that_takes_it_so(head_first):
    model = Tied(head_first=head_first).cuda()
    with nbmem.trace("run") as trace:
        for _ in range(2):
            model(torch.zeros(4, 32, dtype=torch.int64, device="cuda")).exp().sum().backward()
    assert activations(trace, 1) == [
        ("saved after model.head (exp) (4, 32, 1000) float32", 4 * 32 * 1000 * 4),
        ("saved after model.words (sin) (4, 32, 64) float32", 4 * 32 * 64 * 4),
        ("saved by model.head (128, 64) float32", 4 * 32 * 64 * 4),
    ]


def test_one_graph_of_each_kind_is_read_and_names_the_others(monkeypatch):
    read = []
    whole = saved_tensors.saved_tensors

    def counted(*args):
        read.append(1)
        return whole(*args)

    monkeypatch.setattr("nbmem.capture.record.saved_tensor_log.saved_tensors", counted)
    model = Net().cuda()
    with nbmem.trace("run") as trace:
        train(model, 4, 4, 4, 4, 4, 4, 8, 8)
    assert len(read) <= 4  # the first pass of each kind takes segments and workspaces, too
    assert activations(trace, 5) == activations(trace, 0)
    assert {size for _, size in activations(trace, 7)} == {8 * ROW}
    assert all("(8, " in name for name, _ in activations(trace, 7))


def test_a_failed_forward_is_named_by_those_that_completed(card):
    model = Net().cuda()
    x = torch.randn(4, 3, 8, 8, device="cuda")

    def fail(*_):
        torch.empty(card.card.total_bytes, dtype=torch.uint8, device="cuda")

    with nbmem.trace("run") as trace:
        model(x).square().mean().backward()
        model(x).square().mean().backward()
        handle = model.head.register_forward_pre_hook(fail)
        with pytest.raises(torch.OutOfMemoryError):
            model(x)
        handle.remove()
    blocks = {group.name: group.requested for group in trace.report().ooms[0].holders}
    assert blocks["saved by model"] == 3 * 4 * ROW + 2 * 64  # and the batch's mean and deviation


def test_what_lives_at_the_end_is_named_by_its_graph_without_a_backward():
    model = Net().cuda()
    x = torch.randn(64, 3, 64, 64, device="cuda")
    model.head = nn.Linear(65536, 10, device="cuda")
    with nbmem.trace("run", namespace={"model": model}) as trace:
        kept = model(x)
    card_ledger = CardLedger(trace.session)
    names = {
        card_ledger.name(row): card_ledger.category[row]
        for row in card_ledger.live(card_ledger.events)
    }
    assert names["saved by model.norm (64, 16, 64, 64) float32"] == Category.ACTIVATIONS
    del kept


def test_reading_a_graph_runs_no_hook_and_holds_nothing(card):
    model = Net().cuda()
    unpacked = []

    def unpack(packed):
        unpacked.append(1)
        return packed

    x = torch.randn(4, 3, 8, 8, device="cuda")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        loss = model(x).square().mean()
    modules = {id(p): saved_tensors.ModulePath(None, "") for p in model.parameters()}

    def of(parameter, lookup):
        return modules.get(id(parameter))

    def read(output):
        return saved_tensors.saved_tensors(saved_tensors.GraphWalk([output], of))

    list(read(loss))
    assert not unpacked
    loss = model(x).square().mean()
    assert len(list(read(loss))) >= 3
    before = card.allocator.allocated
    gc.disable()
    try:
        del loss
        assert card.allocator.allocated < before - 3 * 4 * ROW
    finally:
        gc.enable()


def test_without_a_module_the_operator_is_the_name():
    def read(outputs):
        return saved_tensors.saved_tensors(saved_tensors.GraphWalk(outputs, lambda _, lookup: None))

    w = torch.ones(256, device="cuda", requires_grad=True)
    names = {s.seen.name for s in read([w.exp().sum()])}
    assert names == {"saved by exp (256,) float32"}
    pooled = nn.functional.max_pool2d(w.view(1, 1, 16, 16).exp(), 2)
    names = {s.seen.name for s in read([pooled])}
    assert "saved by max_pool2d_with_indices (1, 1, 8, 8) int64" in names


def test_a_graph_that_cannot_be_read_costs_only_the_names(monkeypatch):
    def broken(*_):
        raise ValueError("a new kind")

    monkeypatch.setattr("nbmem.capture.record.saved_tensor_log.saved_tensors", broken)
    model = Net().cuda()
    with nbmem.trace("run") as trace:
        train(model, 4, 4)
    report = trace.report()
    assert [row.name for row in report.phases if row.step == 1][-2:] == ["optimizer", "zero_grad"]
    assert any("lost the names of what graphs have saved: ValueError" in n for n in report.notes)


def test_a_torch_that_does_not_show_them_is_said(monkeypatch):
    monkeypatch.setattr(
        saved_tensor_log, "why_unreadable", lambda: "torch 2.6.0 does not show them"
    )
    net = Net().cuda()
    with nbmem.trace() as trace:
        net(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
    (note,) = trace.report().notes
    assert note.startswith("nbmem lost the names of what graphs have saved: torch 2.6.0 does not")
