"""The module that was running when a graph's node was created."""

import pytest
import torch

import nbmem
from nbmem.capture.tensors import running_modules
from nbmem.capture.tensors.running_modules import InnermostModules, ModuleCalls
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
ROWS = 64


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(128, 128).requires_grad_(requires_grad=False)
        self.lora = nn.Linear(128, 128)

    def forward(self, x):
        return (self.base(x) + self.lora(x)).softmax(-1)


class Gate(nn.Module):
    def forward(self, x):
        return x.sigmoid() * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Adapted()
        self.up = nn.Linear(128, 512).requires_grad_(requires_grad=False)
        self.gate = Gate()
        self.head = nn.Linear(512, 1024).requires_grad_(requires_grad=False)

    def forward(self, x):
        hidden = nn.functional.silu(self.up(self.first(x)))
        loss = nn.LogSoftmax(-1)  # freed at the end
        return loss(self.head(self.gate(hidden)))


def names_of(model, *batches):
    def train():
        for rows in batches:
            model(torch.randn(rows, 128, device="cuda")).exp().sum().backward()

    with nbmem.trace("names") as trace:
        train()
    ledger = CardLedger(trace.session)
    made = ledger.phases.named(ledger.born_in, "forward")
    made &= ledger.category == Category.ACTIVATIONS
    rows = made.nonzero()[0].tolist()
    return {ledger.name(row): int(ledger.allocations.requested[row]) for row in rows}


def test_what_runs_behind_a_frozen_layer_has_the_name_of_its_own_module():
    found = names_of(Net().cuda(), ROWS)

    def mine(words):
        return {name: size for name, size in found.items() if name.startswith(words)}

    assert mine("saved after model.first.lora (softmax)") == {
        f"saved after model.first.lora (softmax) ({ROWS}, 128) float32": ROWS * 128 * 4
    }
    assert mine("saved after model.up (silu)") == {
        f"saved after model.up (silu) ({ROWS}, 512) float32": ROWS * 512 * 4
    }
    assert mine("saved by model.gate (sigmoid)") == {
        f"saved by model.gate (sigmoid) ({ROWS}, 512) float32": ROWS * 512 * 4
    }
    assert mine("saved after model.head (log_softmax)") == {
        f"saved after model.head (log_softmax) ({ROWS}, 1024) float32": ROWS * 1024 * 4
    }


def test_a_kind_of_forward_that_comes_late_is_named_once_it_comes_again(monkeypatch):
    monkeypatch.setattr(running_modules, "BACKWARDS", 2)
    monkeypatch.setattr("nbmem.capture.record.saved_tensor_log.BACKWARDS", 2)
    found = names_of(Net().cuda(), *[ROWS] * 6, 2 * ROWS, 2 * ROWS)
    assert f"saved after model.up (silu) ({2 * ROWS}, 512) float32" in found


def test_calls_inside_are_observed_only_while_they_are_wanted():
    calls, module = ModuleCalls(), nn.Linear(2, 2)
    calls.begin(module, grad=True)()
    assert calls.observer() is not None
    calls.wanted = 0
    calls.begin(module, grad=True)()
    assert calls.observer() is None
    calls.wanted = 1
    calls.begin(module, grad=False)()
    assert calls.observer() is None
    assert calls.ends_in_backward()
    assert not calls.ends_in_backward()


def test_an_interrupted_call_does_not_contain_the_next_one():
    calls, outer, inner = ModuleCalls(), nn.Identity(), nn.Linear(2, 2)
    calls.begin(outer, grad=True)  # whose end is lost
    end = calls.begin(inner, grad=True)
    node = torch.ones(1, requires_grad=True).mul(2).grad_fn
    end()
    found = calls.innermost()
    assert list(found.at(node._sequence_nr())) == [inner]
    after = torch.ones(1, requires_grad=True).mul(2).grad_fn
    assert list(calls.innermost().at(after._sequence_nr())) == []
    assert found.covers(node._sequence_nr())
    assert not InnermostModules([]).covers(node._sequence_nr())


def test_the_record_of_a_thread_is_bounded(monkeypatch):
    monkeypatch.setattr(running_modules, "MAX_ENTRIES", 40)
    calls, module = ModuleCalls(), nn.Linear(2, 2)
    for _ in range(100):
        calls.begin(module, grad=True)()
    assert len(calls._calls().entries) <= 44
