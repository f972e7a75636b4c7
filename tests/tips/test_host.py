"""Tips where torch runs on the CPU, measured on the process."""

import ast
import gc
import subprocess
import sys

import psutil
import pytest

torch = pytest.importorskip("torch", reason="the programs are torch programs")

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.core.units import MIB

BEFORE = """
import copy
import gc

import torch
from torch import nn

net = lambda: nn.Linear(3072, 3072, bias=False)
batch = lambda: torch.ones(2, 3072)
"""
SIZE = 36 * MIB
"""Of what is forgotten in each: glibc hands pieces beyond 32 MiB back to the kernel at once."""
FORGOTTEN = {
    "checkpoint_kept": (
        """
model = net()
checkpoint = {k: v.clone() for k, v in model.state_dict().items()}
model.load_state_dict(checkpoint)
model(batch()).sum().backward()
""",
        SIZE,
    ),
    "two_models": (
        """
model = net()
twin = copy.deepcopy(model)
model(batch()).sum().backward()
model.zero_grad()
""",
        SIZE,
    ),
    "graph_kept": (
        """
model, losses = nn.PReLU(), []
for _ in range(3):
    losses.append(model(torch.ones(9 << 20)).square().mean())
""",
        3 * 2 * SIZE,
    ),
}


@pytest.fixture
def names():
    """The names of a program on the host."""
    virtual.deactivate()
    names = {"__name__": "__main__"}
    exec(BEFORE, names)
    yield names
    names.clear()
    gc.collect()


def traced(code, names):
    with nbmem.trace("cell", namespace=names) as trace:
        exec(compile(code, "train.py", "exec"), names)
    assert trace.session.devices[0].info.kind == "cpu"
    return trace


def measure_tip(rule):
    """Return a rule's tip and the measured fall of the process."""
    names = {"__name__": "__main__"}
    exec(BEFORE, names)
    (finding,) = traced(FORGOTTEN[rule][0], names).report().findings
    before = psutil.Process().memory_info().rss
    exec(finding.code, names)
    fell = before - psutil.Process().memory_info().rss
    return finding.rule, finding.low, finding.high, fell


@pytest.mark.parametrize("rule", FORGOTTEN)
def test_a_tip_gives_back_what_it_says(rule):
    if rule == "graph_kept" and (reason := why_unreadable()):
        pytest.skip(reason)
    # In a process of its own: what other tests have left comes and goes.
    code = f"from tests.tips import test_host; print(test_host.measure_tip({rule!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, low, high, fell = ast.literal_eval(done.stdout.splitlines()[-1])
    assert (found, low, high) == (rule, FORGOTTEN[rule][1], FORGOTTEN[rule][1])
    assert abs(fell - low) < MIB


def test_a_list_that_grows_has_no_other_place_to_go_to(names):
    code = """
model, seen = net(), []
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    output = model(batch())
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    seen.append(torch.ones(1 << 20))
"""
    (finding,) = traced(code, names).report().findings
    assert finding.title == "`seen` grows by 4.0 MiB with every step and holds 20.0 MiB"
    assert finding.code is None


def test_a_healthy_training_gets_none(names):
    code = """
model = nn.Sequential(net(), nn.ReLU(), net())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(batch()).sum().backward()
    optimizer.step()
with torch.no_grad():
    score = model(batch()).mean()
"""
    trace = traced(code, names)
    assert trace.report().findings == ()
    assert trace.all_tips() == ()
