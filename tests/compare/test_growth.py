"""Growth from step to step, by name and to the byte."""

import pytest

import nbmem
from nbmem.report.analysis.growth import find_growth
from nbmem.report.ledger.card_ledger import CardLedger

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]
FEATURES, BATCH = 100, 64


def train(body, steps=6):
    """Train six steps and call `body` with each loss and the namespace."""
    import torch

    model = torch.nn.Linear(FEATURES, 400).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    names = {"model": model, "optimizer": optimizer}
    with nbmem.trace("loop", stacks=True, namespace=names) as trace:
        for _ in range(steps):
            loss = model(torch.randn(BATCH, FEATURES, device="cuda")).square().sum()
            loss.backward(retain_graph=True)
            body(loss, names)
            optimizer.step()
            optimizer.zero_grad()
    return find_growth(CardLedger(trace.session))


def test_a_healthy_loop_grows_nothing():
    assert train(lambda loss, names: None) == ()


def test_kept_losses_grow_by_their_graphs_and_are_named():
    def keep(loss, names):
        names.setdefault("losses", []).append(loss)

    (losses,) = train(keep)
    assert (losses.place, losses.iterations) == ("losses", 6)
    assert losses.slope - losses.graph_slope == 512
    # The squared output, and the input of which the first layer's gradient is computed.
    assert losses.graph_slope == BATCH * (400 + FEATURES) * 4


def test_the_steepest_comes_first():
    kept = []
    found = train(lambda loss, names: kept.append(loss))
    assert [line.slope for line in found] == sorted((line.slope for line in found), reverse=True)
    assert found[0].slope > 512


def test_two_steps_are_too_few_to_say():
    kept = []
    assert train(lambda loss, names: kept.append(loss), steps=2) == ()
