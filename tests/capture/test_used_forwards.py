"""Forwards without a backward open no step."""

import pytest
import torch
from torch import nn

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.capture.record import used_forwards as asked_module
from nbmem.capture.record.used_forwards import MAX_ROWS, PATIENCE, UsedForwards
from tests.capture.phase_texts import phase_text, phases_of, steps


class Normalize(nn.Module):
    """A transform like torchvision's: a module without parameters."""

    def forward(self, picture):
        return (picture - 0.5) / 0.25


@pytest.fixture(autouse=True, params=["cuda", "cpu"])
def device(request, monkeypatch):
    monkeypatch.setattr("nbmem.capture.record.time_budget.GRACE_S", 60)
    if request.param == "cpu":
        yield "cpu"
        return
    with virtual.activated("T4"):
        yield "cuda"


def traced_text(loop):
    with nbmem.trace("loop", namespace={}) as t:
        loop()
    return phase_text(phases_of(t))


def network(device, last=64):
    return nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, last)).to(device)


def a_step(net, optimizer, device):
    x = torch.randn(32, 256, device=device)
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_an_evaluation_with_gradients_on_opens_no_step(device):
    def loop():
        net = network(device)
        optimizer = torch.optim.SGD(net.parameters())
        held_out = torch.randn(64, 256, device=device)
        for step in range(3):
            a_step(net, optimizer, device)
            if step == 1:
                net(held_out)

    first = steps("input forward zero_grad backward optimizer", "load")
    last = "input2 forward2 zero_grad2 backward2 optimizer2"
    assert traced_text(loop) == f"{first} forward {last}"


def test_what_a_module_makes_of_a_trained_picture_is_no_step(device):
    def loop():
        net = network(device)
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(2):
            a_step(net, optimizer, device)
        picture = next(net.parameters()).clone()
        Normalize()(picture).clamp_(0, 1)

    last = traced_text(loop).split()[-1]
    assert last == ("forward" if device == "cuda" else "optimizer1")  # the host tells no transform


def test_frozen_features_and_a_generators_picture_open_their_step(device):
    def loop():
        frozen, net = network(device), network(device, 256)
        frozen.requires_grad_(requires_grad=False)
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(2):
            x = torch.randn(32, 256, device=device)
            aim, fake = frozen(x), net(x)
            optimizer.zero_grad()
            loss = (frozen(fake) - aim).pow(2).mean()
            loss.backward()
            optimizer.step()

    phases = traced_text(loop)
    assert "input1 forward1 zero_grad1" in phases
    assert "2" not in phases


def test_a_dry_run_leaves_zero_grad_at_the_head_of_its_step(device):
    def loop(*, grad):
        net = network(device)
        optimizer = torch.optim.SGD(net.parameters())
        x = torch.randn(32, 256, device=device)
        with torch.set_grad_enabled(grad):
            net(x)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).pow(2).mean().backward()
            optimizer.step()

    for grad in (True, False):
        phases = traced_text(lambda grad=grad: loop(grad=grad))
        assert phases.endswith(steps("zero_grad forward backward optimizer", count=3))


def test_a_forward_that_fails_belongs_to_its_own_step(device):
    def loop():
        net = network(device)
        optimizer = torch.optim.SGD(net.parameters())
        a_step(net, optimizer, device)
        x = torch.randn(32, 256, device=device)
        loss = net(x)
        raise RuntimeError(loss.shape)

    with pytest.raises(RuntimeError), nbmem.trace("loop", namespace={}) as t:
        loop()
    assert phases_of(t)[-1].step == 1


def test_an_error_behind_an_evaluation_begins_no_step(device):
    def loop():
        net = network(device)
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(2):
            a_step(net, optimizer, device)
            for _ in range(4):
                net(torch.randn(32, 256, device=device))
        raise ModuleNotFoundError("what draws the curves")

    with pytest.raises(ModuleNotFoundError), nbmem.trace("loop", namespace={}) as t:
        loop()
    # The last one may have been the first of a step: its backward could still have come.
    of_forwards = [s.step for s in phases_of(t) if s.name == "forward"]
    assert of_forwards == [0] * 5 + [1] * 4 + [2]


class TestRows:
    def test_alike_are_read_once(self, monkeypatch):
        reads = []

        def numbers(*given):
            reads.append(given)
            return real(*given)

        real = asked_module.sequence_numbers_of
        monkeypatch.setattr(asked_module, "sequence_numbers_of", numbers)
        log, net, x = UsedForwards(), nn.Linear(4, 4), torch.ones(4)
        for step in range(2 * PATIENCE + 4):
            log.begins(2 * step, 1)
            net(x)
            log.begins(2 * step + 1, 1)
            log.backward([net(x)])
        assert log.never == {2 * step for step in range(step - PATIENCE + 2)}
        assert len(reads) == PATIENCE

    def test_a_large_graph_asks_for_all(self, monkeypatch):
        log, net, x = UsedForwards(), nn.Linear(4, 4), torch.ones(4)
        monkeypatch.setattr(asked_module, "MAX_NODES", 1)
        for mark in range(2):
            log.begins(mark, 1)
            y = net(net(x))
        log.backward([y])
        assert log.waiting(failed=False) == set()

    def test_after_so_many_kinds_all_count_as_asked_for(self):
        log, net, x = UsedForwards(), nn.Linear(4, 4), torch.ones(4)
        log._rows = {((0, kind),): frozenset() for kind in range(MAX_ROWS)}
        for mark in range(2):
            log.begins(mark, 1)
            y = net(x)
        log.backward([y])
        assert log.waiting(failed=False) == set()
