"""An evaluation that runs out of memory is told torch.no_grad(), and what follows it."""

import pytest

import nbmem
from nbmem import virtual
from nbmem.report.analysis.program_names import BODY

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NET = """
import torch
from torch import nn
def net(layers):
    blocks = (nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(layers))
    return nn.Sequential(*blocks).cuda()
lm = net(20)
"""
TRAINING = """
sgd = torch.optim.SGD(lm.parameters())
for _ in range(3):
    lm(torch.zeros(1000, 4096, device="cuda")).sum().backward()
    sgd.step()
    sgd.zero_grad()
"""
ROWS = 30_000
SCORE = f"score = lm(torch.zeros({ROWS}, 4096, device='cuda')).sum().item()"
PROGRAMS = {
    "after a training": (f"{NET}{TRAINING}lm.eval()", True),
    "without a training": (f"{NET}lm.eval()", False),
    "in training mode, without an optimizer": (NET, True),
}


def explained(before, cell):
    """Run a program on a new virtual T4 until it runs out; return the explanation."""
    names = {"__name__": "__main__"}
    trace = nbmem.trace("cell", namespace=names)
    with virtual.activated("T4"):
        torch.cuda.init()
        with pytest.raises(torch.OutOfMemoryError), trace:
            exec(compile(f"{before}\n{cell}", "cell.py", "exec"), names)
    return trace.report().ooms[0]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_evaluation_is_told_no_grad_and_training_mode_again(program):
    before, trains = PROGRAMS[program]
    oom = explained(before, SCORE)
    (first, *others) = oom.remedies
    assert first.rule == "no_grad_missing"
    assert "no_grad_missing" not in [one.rule for one in others]
    assert first.title.startswith("Evaluate under torch.no_grad(): about ")
    assert first.evidence.endswith("the program runs on.")
    assert first.high % (ROWS * 4096 * 4) == 0, "whole activations"
    assert not oom.notes
    lines = first.code.splitlines()
    assert lines[2:4] == ["lm.eval()", "with torch.no_grad():"]
    assert (lines[-1] == "lm.train()   # before the training goes on") is trains
    with virtual.activated("T4"):
        exec(compile(f"{before}\n{first.code.replace(BODY, SCORE)}", "cell.py", "exec"), {})


DISTILLS = f"""{NET}
student = net(2)
sgd = torch.optim.SGD(student.parameters())
lm.eval()
"""
STEPS = """
for _ in range(2):
    x = torch.zeros(20_000, 4096, device="cuda")
    goal = lm(x)
    (student(x) - goal).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""


def test_a_teachers_line_leaves_the_students_gradients_on():
    first, *others = explained(DISTILLS, STEPS).remedies
    assert first.title.startswith("`lm` under torch.no_grad(): ")
    assert first.code.startswith("lm.requires_grad_(False)")
    assert not any("lm" in (one.code or "") for one in others), "no checkpoints in a teacher"
    with virtual.activated("T4"):
        names = {}
        exec(compile(f"{DISTILLS}\n{first.code}\n{STEPS}", "cell.py", "exec"), names)
        assert all(one.requires_grad for one in names["student"].parameters())


TWO_TOWERS = f"""{NET}
sgd = torch.optim.SGD(lm.parameters())
for _ in range(2):
    one, two = (lm(torch.zeros(ROWS, 4096, device="cuda")) for _ in range(2))
    (one - two).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""


def test_two_forwards_before_the_first_backward_are_one_step_and_no_growth():
    found = explained("", TWO_TOWERS.replace("ROWS", "16_000")).remedies
    assert "grows_each_step" not in [one.rule for one in found]
    first = next(one for one in found if one.rule == "batch_size")
    assert first.evidence.endswith("the program runs on.")
    rows = first.title.partition("about ")[2].partition(" ")[0]
    with virtual.activated("T4"):
        exec(compile(TWO_TOWERS.replace("ROWS", rows), "cell.py", "exec"), {})


SUMMED = f"""{NET}
sgd = torch.optim.SGD(lm.parameters())
total = 0
for _ in range(10):
    total = total + lm(torch.zeros(3_000, 4096, device="cuda")).square().mean()
"""


def test_losses_that_wait_for_one_backward_are_not_told_to_be_detached():
    first = explained(SUMMED, "total.backward()").remedies[0]
    assert first.rule == "graph_kept"
    assert first.title.endswith("; call backward() on each pass's loss")
    assert first.code is None
