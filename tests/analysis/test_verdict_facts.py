"""The largest category at the peak, and what holds the most of it."""

import torch

from nbmem import virtual
from nbmem.api import tracing
from nbmem.core.session.categories import Category
from nbmem.report.analysis.verdict_facts import largest_owner


def test_the_deepest_path_with_more_than_half_is_the_owner():
    owners = [("model.features.0", 30), ("model.features.1", 29), ("model.head", 20)]
    assert largest_owner(owners, 100) == ("model.features", 59)
    assert (
        largest_owner([*owners, ("losses[0]", 11), ("losses[1]", 10)], 100)[0] == "model.features"
    )
    assert largest_owner([("losses[0]", 30), ("losses[1]", 30)], 60) == ("losses", 60)
    assert largest_owner([("a", 2), ("b", 3)], 10) == ("b", 3)
    assert largest_owner([], 10) == (None, 0)


def test_a_models_states_belong_to_it():
    with virtual.activated("T4", defer=True):
        net = torch.nn.Linear(8192, 8192, bias=False).cuda()
        small = torch.nn.Linear(1024, 1024, bias=False).cuda()
        opt = torch.optim.Adam([*net.parameters(), *small.parameters()])
        names = {"net": net, "small": small, "opt": opt}
        with tracing.trace("step", namespace=names) as trace:
            for model in (net, small):
                model(torch.randn(8, model.in_features, device="cuda")).sum().backward()
            opt.step()
        report = trace.report()
    (largest,) = report.largest
    states = 2 * 4 * (8192**2 + 1024**2)
    assert (largest.category, largest.held) == (Category.OPTIMIZER_STATE, states)
    assert (largest.owner, largest.owned) == ("net", 2 * 4 * 8192**2)


def test_where_the_context_is_largest_what_torch_holds_follows():
    with virtual.activated("T4", defer=True):
        with tracing.trace("one", namespace={}) as trace:
            one = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
        del one
        first, second = trace.report().largest
    assert first.category is Category.CONTEXT
    assert (second.category, second.held) == (Category.USER_TENSORS, 10 << 20)
