"""Bytes by category during a loop, exact against the tensors."""

import threading

import pytest
import torch

from nbmem import virtual
from nbmem.api import tracing
from nbmem.frontends.sidebar.card_reader import CardReader
from nbmem.frontends.sidebar.loop_categories import by_category

HUGE = 1 << 18
"""Its gradients are far more than all else, the libraries' workspaces too."""


@pytest.fixture(autouse=True)
def card():
    with virtual.activated("L4"):
        yield


@pytest.fixture
def known():
    with tracing.trace("t", namespace={}):
        yield tracing.running_recorder().progress


def bytes_of(known):
    """Return the known bytes, checked against allocated ones."""
    progress = known()
    allocated = torch.cuda.memory_allocated()
    entries = by_category(progress, 0, allocated)
    assert sum(size for *_, size in entries) == (allocated if entries else 0)
    named = {key: size for key, _, size in entries}
    named.pop("rest", None)
    return named


def network(inner=200):
    model = torch.nn.Sequential(
        torch.nn.Linear(100, inner), torch.nn.BatchNorm1d(inner), torch.nn.Linear(inner, 10)
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


def test_gradients_that_go_one_by_one_are_no_more_than_are_left(known):
    model, optimizer = network(HUGE)
    model(torch.zeros(8, 100, device="cuda")).sum().backward()
    optimizer.step()
    whole = bytes_of(known)["gradients"]
    model[0].weight.grad = None
    assert whole - 4 * 100 * HUGE <= bytes_of(known)["gradients"] < whole


def test_every_reading_of_a_loop_has_its_categories():
    """Also in the middle of zero_grad(), and where the cell goes on while the card is read."""
    readings, ended = [], threading.Event()

    def read(recorder, reader):
        while not ended.is_set():
            progress = recorder.progress()
            cards = reader.read(progress)
            if progress.step:
                readings.extend(bool(card.by_category) for card in cards)

    with tracing.trace("t", namespace={}):
        thread = threading.Thread(target=read, args=(tracing.running_recorder(), CardReader()))
        thread.start()
        model, optimizer = network(HUGE)
        while len(readings) < 1000:
            model(torch.zeros(8, 100, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ended.set()
        thread.join()
    assert readings.count(False) == 0, f"of {len(readings)}"


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
    steps = []
    assert known().step is None
    for _ in range(3):
        loss = model(torch.zeros(8, 100, device="cuda")).sum()
        steps.append(known().step)
        loss.backward()
        optimizer.step()
        steps.append(known().step)
        optimizer.zero_grad()
    assert steps == [0, 0, 1, 1, 2, 2]


def test_after_a_generator_and_its_critic_the_step_is_the_pass(known):
    critic, slow = network()
    model, fast = network()
    steps = []
    for _ in range(3):
        for part, optimizer in (critic, slow), (model, fast):
            part(torch.zeros(8, 100, device="cuda")).sum().backward()
            steps.append(known().step)
            optimizer.step()
    assert steps[2:] == [1, 1, 2, 2]
