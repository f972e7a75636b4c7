"""What a checkpoint recomputes are activations, if it outlives the recomputation."""

import numpy as np
import pytest

pytest.importorskip("torch")

from nbmem.core.session.categories import Category
from nbmem.report.analysis import card_ledger_of
from tests.tips.measure import program_runner
from tests.tips.programs import MODEL

CODE = """
from torch.utils.checkpoint import checkpoint
kept = []
block = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
if {hooked}:
    block[1].register_forward_hook(lambda module, args, out: kept.append(out.detach()))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = block
    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant={reentrant})
model = Net()
for _ in range(3):
    model(batch(1024).requires_grad_()).sum().backward()
    model.zero_grad()
    kept.clear()
"""
MIB = 2**20


@pytest.fixture
def ledger():
    """Provide ledger(code), a program's card ledger."""
    with program_runner() as run:
        yield lambda code: card_ledger_of(run(code, before=MODEL)[0].session)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("hooked", [True, False])
def test_recomputed_activations(ledger, hooked, reentrant):
    found = ledger(CODE.format(hooked=hooked, reentrant=reentrant))
    rows = np.flatnonzero(found.phases.named(found.born_in, "backward"))
    made = rows[found.category[rows] == Category.ACTIVATIONS]
    # In each step the output of the ReLU, whether a hook keeps it or the graph; those of the
    # linear layers are freed in the recomputation, or are its result.
    names = {found.name(row) for row in made}
    assert names == {"recomputed in backward"}
    sizes = found.allocations.requested[made]
    assert set((sizes // MIB).tolist()) == {4}
    assert len(made) % 3 == 0
    gradients = rows[found.category[rows] == Category.OUTPUT_GRADIENTS]
    assert not np.isin(made, gradients).any()


def test_a_backward_without_checkpoints_has_no_activations(ledger):
    found = ledger(
        CODE.format(hooked=True, reentrant=False).replace(
            "checkpoint(self.block, x, use_reentrant=False)", "self.block(x)"
        )
    )
    rows = np.flatnonzero(found.phases.named(found.born_in, "backward"))
    assert not (found.category[rows] == Category.ACTIVATIONS).any()
