"""Training loops on the host, with phases from graph nodes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import nbmem.api.tracing as nbmem
from nbmem.capture.tensors.sequence_numbers import MAX_SAMPLES, SequenceNumbers, sequence_nr_of
from nbmem.core.session.categories import Category
from tests.capture.phase_texts import phase_text, phases_of, steps

SAVED = 4 * 32 * (512 + 512 + 64)
"""What the forward keeps for backward: two hidden layers' results, and log_softmax's."""


@pytest.fixture(autouse=True)
def _time_to_look(monkeypatch):
    """Lift the time budget, so that no step is skipped."""
    monkeypatch.setattr("nbmem.capture.record.time_budget.GRACE_S", 60)


def network():
    return nn.Sequential(
        nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 64)
    )


def batch():
    return torch.randn(32, 256), torch.randint(64, (32,))


def recorded(loop):
    with nbmem.trace("loop", namespace={}) as t:
        loop()
    return t


def test_zero_grad_between_loss_and_backward():
    def loop():
        net = network()
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(3):
            x, y = batch()
            loss = cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    trace = recorded(loop)
    assert phase_text(phases_of(trace)) == steps(
        "input forward zero_grad backward optimizer", "load", count=3
    )
    forwards = [row for row in trace.report().phases if row.name == "forward"]
    held = [row.ledger_at_end[Category.ACTIVATIONS] for row in forwards]
    assert all(SAVED <= one < SAVED + 1024 for one in held), held


def test_a_loss_behind_zero_grad_is_forward_there():
    def loop():
        net = network()
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(2):
            x, y = batch()
            out = net(x)
            optimizer.zero_grad()
            loss = cross_entropy(out, y)
            loss.backward()
            optimizer.step()

    assert phase_text(phases_of(recorded(loop))) == steps(
        "input forward zero_grad forward backward optimizer", "load"
    )


def test_equal_steps_have_equal_phases_after_the_time_budget(monkeypatch):
    """A loss of a bare tensor (SAC's temperature) shows by its nodes, which are counted."""
    monkeypatch.setattr("nbmem.capture.record.time_budget.GRACE_S", 0)
    monkeypatch.setattr("nbmem.capture.record.time_budget.SHARE", 0)

    def loop():
        net, scale = network(), torch.zeros(1, requires_grad=True)
        first = torch.optim.SGD(net.parameters())
        second = torch.optim.SGD([scale])
        for _ in range(6):
            x, _ = batch()
            out = net(x)
            first.zero_grad()
            out.pow(2).mean().backward()
            first.step()
            loss = -(scale * out.detach()).mean()
            second.zero_grad()
            loss.backward()
            second.step()

    trace = recorded(loop)
    assert any("too quick for their graphs" in note for note in trace.session.notes)
    of_step = (
        "input forward zero_grad forward backward optimizer forward zero_grad backward optimizer"
    )
    later = steps(of_step, count=6).removeprefix(steps(of_step, count=1))
    assert phase_text(phases_of(trace)).endswith(f"optimizer0{later}")


def test_zero_grad_at_the_loops_head():
    def loop():
        net = network()
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            x, y = batch()
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()

    assert phase_text(phases_of(recorded(loop))) == steps(
        "zero_grad input forward backward optimizer", "load", count=3
    )


def test_two_optimizers_of_a_gan():
    def loop():
        maker, judge = nn.Linear(64, 256), network()
        of_maker, of_judge = (torch.optim.SGD(one.parameters()) for one in (maker, judge))
        for _ in range(2):
            real, _ = batch()
            fake = maker(torch.randn(32, 64))
            loss = judge(fake.detach()).mean() - judge(real).mean()
            of_judge.zero_grad()
            loss.backward()
            of_judge.step()
            loss = -judge(fake).mean()
            of_maker.zero_grad()
            loss.backward()
            of_maker.step()

    assert phase_text(phases_of(recorded(loop))) == steps(
        "input forward zero_grad backward optimizer forward zero_grad backward optimizer", "load"
    )


def test_micro_steps_before_a_step():
    def loop():
        net = network()
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(2):
            losses = []
            for _ in range(2):
                x, y = batch()
                losses.append(cross_entropy(net(x), y))
            optimizer.zero_grad()
            for loss in losses:
                loss.backward()
            optimizer.step()

    assert phase_text(phases_of(recorded(loop))) == steps(
        "input forward input forward zero_grad backward backward optimizer", "load"
    )


def test_the_closure_of_an_optimizer():
    def loop():
        net = network()
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)
        x, y = batch()

        def closure():
            loss = cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    names = phase_text(phases_of(recorded(loop)))
    assert "zero_grad0 forward0" not in names
    assert "zero_grad1 forward1" not in names
    assert "forward0 zero_grad0 backward0" in names
    assert "forward1 zero_grad1 backward1" in names


def test_a_node_existed_at_the_first_sample_after_it():
    numbers, x = SequenceNumbers(torch), torch.ones(2, requires_grad=True)
    assert numbers.first_sample_after(0) is None
    numbers.record_sample(3)
    y = x * 2
    assert numbers.first_sample_after(sequence_nr_of(y.grad_fn)) is None
    numbers.record_sample(5)
    numbers.record_sample(8)
    assert numbers.first_sample_after(sequence_nr_of(y.grad_fn)) == 5
    assert (
        numbers.first_sample_after(sequence_nr_of(y.grad_fn.next_functions[0][0])) is None
    )  # x's own
    for sample in range(9, MAX_SAMPLES + 9):
        numbers.record_sample(sample)
    oldest = numbers.first_sample_after(sequence_nr_of(y.grad_fn))
    assert 8 < oldest < MAX_SAMPLES


def test_without_sequence_numbers_the_sample_is_unknown(monkeypatch):
    monkeypatch.delattr(torch._C._autograd, "_get_sequence_nr")
    numbers = SequenceNumbers(torch)
    numbers.record_sample(1)
    assert numbers.first_sample_after(0) is None
