"""Lines of a plan, pasted into the cell, save what the plan says."""

import textwrap

import pytest

torch = pytest.importorskip("torch")

from nbmem import virtual
from nbmem.estimates.programs import programs
from nbmem.estimates.programs.source_edits import Edit, difference
from nbmem.estimates.questions import plan, planner
from nbmem.estimates.remedies import patches
from nbmem.estimates.remedies.compiled import Compile
from nbmem.estimates.runs.probe_run import Request, probe

TOP = """
import torch
from torch import nn
batch = 4096

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(16, 32, 3, padding=1)
        self.relu = nn.ReLU()
        self.thin = nn.Conv2d(32, 16, 3, padding=1)
    def forward(self, x):
        return x + self.thin(self.relu(self.wide(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16 * 64, 8192)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1))

model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
"""
LOOP = """
for step in range(8):
    x = torch.randn(batch, 16, 8, 8, device="cuda")
"""
FORWARD = "loss = model(x).square().mean()"
STEP = """
loss.backward()
optimizer.step()
optimizer.zero_grad()
"""
SCALARS = 4 * 512
"""What a loss that is scaled or divided may hold more than one that is not."""


def paste_option(key, code):
    """Return the cell with an option's lines in their places."""
    top, loop, forward, step = TOP, LOOP, FORWARD, STEP
    if FORWARD in code:
        forward, _, rest = code.partition("scaler.scale")
        first, forward = forward.split("with", 1)
        top += first
        forward = f"with{forward}"
        step = f"scaler.scale{rest}\noptimizer.zero_grad()\n" if rest else STEP
    elif key.startswith("micro"):
        assignment, _, step = code.partition("\n")
        top = top.replace("batch = 4096", assignment)
    elif key == "expandable":
        top = code + top
    elif key == "channels_last":
        model, x = code.splitlines()
        top += model
        forward = f"{x}\n{FORWARD}"
    else:
        top += code
    return f"{top}{loop}{textwrap.indent(f'{forward}{chr(10)}{step}', '    ')}"


@pytest.fixture(scope="module")
def options(here):
    cell = TOP + LOOP + textwrap.indent(f"{FORWARD}{STEP}", "    ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.Planner, "find_largest", lambda *_: None)
        patch.setattr(planner, "difference", lambda _before, after: after)
        patch.setattr(patches.gc, "get_objects", list)  # optimizers of other tests
        patch.setattr(plan, "PAIRED", 0)
        patch.setattr(Compile, "missing", lambda: "It has tests of its own.")  # it takes long
        found = here.plan(programs.cell(cell, {}, vary="batch"), "T4", every=True)
    return {option.key: option for option in found.options}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """Restore the allocator's environment variable after a test."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")


def allocated_by(source):
    found = probe(programs.cell(source, {}), Request(card=virtual.find_card("T4"))).probe
    assert found.failure is None
    return found.allocated


KEYS = (
    "expandable", "fused", "channels_last", "inplace", "autocast", "no_foreach", "micro2",
    "micro4", "checkpoint_selective", "checkpoint", "offload", "sgd",
)  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_the_lines_hold_what_the_plan_says(options, key):
    option = options[key]
    assert option.probe is not None, option.why_not
    assert abs(allocated_by(paste_option(key, option.code)) - option.probe.allocated) <= SCALARS
    assert option.saved == options["as it is"].probe.allocated - option.probe.allocated


@pytest.mark.parametrize("key", [key for key in KEYS if key != "channels_last"])
def test_the_changed_program_holds_it_too(options, key):
    option = options[key]
    assert option.diff.count("\n") >= TOP.count("\n")
    assert abs(allocated_by(option.diff) - option.probe.allocated) <= SCALARS


OTHERS = """
net = Net()
o = torch.optim.SGD(
    net.parameters(),
    lr=0.1,
)
for i, (x, y) in enumerate(batches):
    o.zero_grad()
    criterion(net(x), y).backward()
    o.step()
"""


def test_the_difference_has_the_programs_own_names():
    edit = Edit.of(OTHERS)
    assert (edit.own.model, edit.own.optimizer) == ("net", "o")
    assert edit.own.forward == ("loss = criterion(net(x), y)",)
    assert edit.backward_as("(loss / 2).backward()")
    assert edit.every(2)
    assert edit.with_keyword("fused", "True")
    assert (
        difference(OTHERS, edit.result())
        == """\
@@ -3,7 +3,9 @@
     net.parameters(),
-    lr=0.1,
-)
+    lr=0.1, fused=True)
 for i, (x, y) in enumerate(batches):
-    o.zero_grad()
-    criterion(net(x), y).backward()
-    o.step()
+    if i % 2 == 0:
+        o.zero_grad()
+    loss = criterion(net(x), y)
+    (loss / 2).backward()
+    if i % 2 == 1:
+        o.step()"""
    )


def test_what_is_not_certain_is_not_changed():
    twice = Edit.of(OTHERS + OTHERS)
    assert not twice.with_keyword("fused", "True")
    assert not twice.wrap_forward("torch.no_grad()")
    assert twice.own.model == "net"
