"""Names of blocks that are added to a parameter's gradient."""

from collections import Counter

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger

nn = torch.nn
MIB = 1 << 20
STEPS = 3
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(why_unreadable() is not None, reason="this torch shows no saved tensors"),
]


def rows():
    return torch.randn(64, 512, device="cuda")


def accumulated(model):
    """Run three micro-steps that add to one gradient."""
    for _ in range(3):
        model(rows()).sum().backward()


def siamese(model):
    """Run one backward through two forwards."""
    (model(rows()) - model(rows())).square().mean().backward()


def cast(model):
    """Run one backward through two forwards, under autocast."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(rows()).sum() + model(rows()).sum()
    loss.backward()


def gradient_blocks(step, model):
    """Count weight-sized blocks of the backwards, by name and step."""
    card_ledger = CardLedger(trained(step, model.cuda()).session)
    sizes = card_ledger.allocations.requested
    found = [Counter() for _ in range(STEPS)]
    for row in range(len(sizes)):
        phase = card_ledger.phases.of(card_ledger.allocations.allocated_at[row : row + 1])[0]
        if phase >= 0 and sizes[row] in (MIB, MIB // 2):
            span = card_ledger.phases.spans[int(phase)][1]
            if span.name == "backward":
                found[span.step][
                    card_ledger.name(row), Category(int(card_ledger.category[row]))
                ] += 1
    return found


def trained(step, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trace = nbmem.trace("cell", namespace={"model": model})
    with trace:
        for _ in range(STEPS):
            step(model)
            optimizer.step()
            optimizer.zero_grad()
    return trace


@pytest.mark.parametrize(
    ("step", "dtype", "added"),
    [(accumulated, "float32", 2), (siamese, "float32", 2), (cast, "bfloat16", 3)],
)
def test_what_is_added_to_a_gradient_is_named_after_it_in_every_step(step, dtype, added):
    with virtual.activated("T4"):
        found = gradient_blocks(
            step, nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        )
    weights = ("model.0.weight.grad (512, 512)", "model.2.weight.grad (512, 512)")
    wanted = Counter()
    for weight in weights:
        wanted[f"{weight} float32", Category.GRADIENTS] = 1
        wanted[f"added to {weight} {dtype}", Category.OUTPUT_GRADIENTS] = added
    assert found == [wanted] * STEPS


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(256, 512)

    def forward(self, x):
        state = torch.zeros(len(x), 512, device=x.device)
        for _ in range(4):
            state = self.cell(x, state)
        return state


def test_a_weight_that_each_time_step_takes():
    with virtual.activated("T4"):
        found = gradient_blocks(
            lambda model: model(torch.randn(32, 256, device="cuda")).sum().backward(), Unrolled()
        )
    names = {name for step in found for name, _ in step}
    assert names - {"staging of a reduction"} == {
        f"{before}model.cell.{weight}.grad {shape} float32"
        for before in ("", "added to ")
        for weight, shape in (("weight_hh", "(512, 512)"), ("weight_ih", "(512, 256)"))
    }
    assert found[0] == found[1] == found[2]
