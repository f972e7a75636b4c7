"""What is known of the bytes during a loop, against the tensors themselves: exact to the byte."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from nbmem import api, virtual
from nbmem.live.known import KnownBytes


@pytest.fixture(autouse=True)
def card():
    with virtual.activated("L4"):
        yield


@pytest.fixture
def known():
    with api.trace("t", namespace={}):
        yield KnownBytes(api.running_recorder())


def bytes_of(known):
    """What is known now, checked against what is allocated."""
    known.follow()
    allocated = torch.cuda.memory_allocated()
    entries = known.of(0, allocated)
    assert sum(size for *_, size in entries) == (allocated if entries else 0)
    named = {key: size for key, _, size in entries}
    named.pop("rest", None)
    return named


def network():
    model = torch.nn.Sequential(
        torch.nn.Linear(100, 200), torch.nn.BatchNorm1d(200), torch.nn.Linear(200, 10)
    ).cuda()
    return model, torch.optim.Adam(model.parameters())


def test_each_category_is_there_once_the_loop_has_shown_it(known):
    assert bytes_of(known) == {}
    model, optimizer = network()
    weights = 4 * (100 * 200 + 200 + 2 * 200 + 200 * 10 + 10)
    model(torch.zeros(8, 100, device="cuda")).sum().backward()
    with_gradients = {"weights": weights, "buffers": 4 * 2 * 200 + 8, "gradients": weights}
    assert bytes_of(known) == with_gradients
    optimizer.step()
    state = sum(
        value.untyped_storage().nbytes()
        for values in optimizer.state.values()
        for value in values.values()
        if value.is_cuda
    )
    assert bytes_of(known) == with_gradients | {"optimizer_state": state}
    optimizer.zero_grad()
    assert "gradients" not in bytes_of(known)
    model(torch.zeros(8, 100, device="cuda")).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert bytes_of(known)["gradients"] == weights, "zeroed, and still there"


def test_what_is_gone_is_not_named(known):
    model, optimizer = network()
    model(torch.zeros(8, 100, device="cuda")).sum().backward()
    assert bytes_of(known)
    torch.cuda.synchronize()
    del model, optimizer
    assert "weights" not in bytes_of(known)


def test_a_model_that_is_halved_counts_once(known):
    model, _ = network()
    model(torch.zeros(8, 100, device="cuda"))
    whole = bytes_of(known)["weights"]
    model.half()(torch.zeros(8, 100, device="cuda", dtype=torch.half))
    assert bytes_of(known)["weights"] == whole // 2


def test_a_part_that_is_called_alone_is_not_counted_twice(known):
    model, _ = network()
    x = torch.zeros(8, 100, device="cuda")
    model(x)
    whole = bytes_of(known)["weights"]
    model[0](x)
    assert bytes_of(known)["weights"] == whole


def test_the_step_counts_passes_as_the_report_does(known):
    model, optimizer = network()
    recorder, steps = known.recorder, []
    assert recorder.turns.step_now() is None
    for _ in range(3):
        loss = model(torch.zeros(8, 100, device="cuda")).sum()
        steps.append(recorder.turns.step_now())
        loss.backward()
        optimizer.step()
        steps.append(recorder.turns.step_now())
        optimizer.zero_grad()
    assert steps == [0, 0, 1, 1, 2, 2]


def test_after_a_generator_and_its_critic_the_step_is_the_pass(known):
    critic, slow = network()
    model, fast = network()
    steps = []
    for _ in range(3):
        for part, optimizer in (critic, slow), (model, fast):
            part(torch.zeros(8, 100, device="cuda")).sum().backward()
            steps.append(known.recorder.turns.step_now())
            optimizer.step()
    assert steps[2:] == [1, 1, 2, 2]
