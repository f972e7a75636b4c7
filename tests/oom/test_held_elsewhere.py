"""What could lie in host memory is told where a smaller program is no cure."""

import pytest

from tests.oom.programs import run

pytestmark = pytest.mark.torch
START = """
import copy
import torch
from torch import nn
"""
DATA = START + (
    """
rows = torch.zeros({rows}, 4096, device="cuda")
net = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
batch = rows[:60_000]
net(batch * 1).square().mean().backward()
"""
)
BEST = START + (
    """
net = nn.Sequential(
    nn.Embedding(960_000, 1024, device="cuda"), nn.Linear(1024, 2, device="cuda")
)
sgd = torch.optim.SGD(net.parameters(), momentum=0.9)
for epoch in range(3):
    for _ in range(2):
        net(torch.randint(900_000, (64, 64), device="cuda")).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
    best = {copy}
"""
)
RESUMED = START + (
    """
layer = lambda: nn.Linear(4096, 4096, bias=False, device="cuda")
net = nn.Sequential(*(layer() for _ in range(50)))
saved = {{k: v.clone() for k, v in net.state_dict().items()}}
{release}
sgd = torch.optim.AdamW(net.parameters(), fused=True)
for _ in range(2):
    net(torch.randn(64, 4096, device="cuda")).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""
)
EVALUATED = START + (
    """
net = nn.Sequential(nn.Conv2d(3, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 8, 3)).cuda()
sgd = torch.optim.SGD(net.parameters(), momentum=0.9)
for _ in range(2):
    net(torch.randn(16, 3, 224, 224, device="cuda")).mean().backward()
    sgd.step()
    sgd.zero_grad()
net.eval()
with torch.no_grad():
    net(torch.randn({rows}, 3, 224, 224, device="cuda"))
"""
)


def first_remedy(code, cure):
    """Return the first remedy of a program that runs with a cure."""
    trace, _ = run(code)
    run(cure, fails=False)
    return trace.report().ooms[0].remedies[0]


def test_data_and_its_slice_are_named_before_a_smaller_batch():
    found = first_remedy(DATA.format(rows=600_000), DATA.format(rows=60_000))
    assert found.rule == "held_by_name"
    assert found.title.startswith("Free rows and batch before this line, or keep them on the CPU")
    assert found.code == "del rows, batch"
    assert found.low == found.high == -(-600_000 * 4096 * 4 // (2 << 20)) * (2 << 20)


def test_a_copy_that_comes_again_is_kept_elsewhere():
    found = first_remedy(BEST.format(copy="copy.deepcopy(net.state_dict())"), BEST.format(copy=0))
    assert found.title.startswith("Free best before this line, or keep it on the CPU: 3.66 GiB")


def test_what_was_loaded_once_is_not_loaded_again():
    found = first_remedy(RESUMED.format(release=""), RESUMED.format(release="del saved"))
    assert (found.rule, found.code) == ("held_by_name", "del saved")
    assert found.low == found.high == 50 * 4096 * 4096 * 4


def test_a_first_evaluation_is_no_part_of_a_training_step():
    trace, _ = run(EVALUATED.format(rows=600))
    smaller = trace.report().ooms[0].remedies[0]
    assert smaller.rule == "batch_size"
    rows = int(smaller.title.removeprefix("Take a batch of about ").partition(" ")[0])
    run(EVALUATED.format(rows=rows), fails=False)
