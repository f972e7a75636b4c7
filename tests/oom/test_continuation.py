"""What follows a failed request, against runs that did not fail."""

import itertools

import pytest

import nbmem
from nbmem import virtual
from nbmem.report.analysis.oom.continuations.continuation import LIVE, NEVER
from nbmem.report.analysis.oom.failed_request import cases
from nbmem.report.analysis.oom.live_groups import groups
from nbmem.report.analysis.oom.trial import Trial
from nbmem.report.ledger.card_ledger import CardLedger

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]
MIB = 1 << 20
START = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
"""
LOOPS = {
    "equal layers": """
net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12))).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(4):
    loss = net(torch.randn(4096, 512, device="cuda")).square().mean()
    fail(step)
    loss.backward(); opt.step(); opt.zero_grad()
""",
    "gradients live in the forward": """
net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8))).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    x = torch.randn(4096, 512, device="cuda"); y = torch.randint(0, 512, (4096,), device="cuda")
    fail(step)
    out = net(x)
    loss = cross_entropy(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "two optimizers": """
G = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 2048)).cuda()
D = nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(4):
    fake = G(torch.randn(2048, 64, device="cuda"))
    od.zero_grad(); (D(torch.randn(2048, 2048, device="cuda")) + D(fake.detach())).mean().backward()
    fail(step)
    od.step()
    og.zero_grad(); (-D(fake)).mean().backward(); og.step()
""",
    "accumulated gradients": """
net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(4):
    for micro in range(3):
        net(torch.randn(4096, 512, device="cuda")).mean().backward()
    fail(step)
    opt.step(); opt.zero_grad()
""",
    "evaluation": """
net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).cuda()
with torch.no_grad():
    for step in range(4):
        out = net(torch.randn(4096, 512, device="cuda"))
        fail(step)
        top = out.softmax(-1)
""",
}


def traced(code, fail, stop=None):
    """Trace a loop whose function `fail` is called in each step."""
    names = {"__name__": "__main__", "fail": fail}
    trace = nbmem.trace("cell", namespace=names)
    if stop is None:
        with trace:
            exec(compile(START + code, "cell.py", "exec"), names)
    else:
        with pytest.raises(stop), trace:
            exec(compile(START + code, "cell.py", "exec"), names)
    return trace


def ask():
    """Allocate 24 MiB and free them."""
    import torch

    torch.empty(24 * MIB, dtype=torch.uint8, device="cuda")


def trial_of(trace):
    """Return the trial of the request that ended a recording."""
    ledger = CardLedger(trace.session)
    case = cases(ledger)[-1]
    return Trial(case, groups(case), trace.report().ooms[0].at.phase)


def highest(trial):
    """Return the most requested bytes from the failure on, for a step more."""
    requested = int(trial.case.card_ledger.requested[trial.case.index])
    changes = [(b.requested_at, b.size) for b in trial.then.blocks if b.requested_at != LIVE]
    changes += [(b.freed_at, -b.size) for b in trial.then.blocks if b.freed_at != NEVER]
    changes = sorted(change for change in changes if change[0] < trial.then.one_more)
    return requested + max(itertools.accumulate(size for _, size in changes))


@pytest.mark.parametrize("name", LOOPS)
def test_the_rest_of_a_step_peaks_as_a_run_that_goes_on(name):
    import torch

    whole = traced(LOOPS[name], lambda _: ask())
    virtual.deactivate()

    def fail(step):
        if step == 2:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(1e-9)
        ask()

    with virtual.activated("T4"):
        failed = traced(LOOPS[name], fail, torch.OutOfMemoryError)
    trial = trial_of(failed)
    assert trial.known
    assert not trial.then.estimated
    assert trial.then.slope == 0
    assert highest(trial) == whole.report().peak.requested
