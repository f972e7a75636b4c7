"""Programs for the virtual card: one fault each, what mends it, and how the bytes are compared."""

from __future__ import annotations

from dataclasses import dataclass

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

torch.cuda.init()
net = lambda width=1024, depth=6: nn.Sequential(
    *(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))
).cuda()
batch = lambda rows=256, width=1024: torch.randn(rows, width, device="cuda")
"""


@dataclass(frozen=True, kw_only=True)
class Freeing:
    """A fault whose mending frees memory at once: predicted and measured bytes are equal.

    Attributes:
        rule: The tip that must come first.
        code: The cell.
        action: What the user does about it.
        before: Run before the recording begins.
        name: What its title must say.
    """

    rule: str
    code: str
    action: str
    before: str = MODEL
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """A fault whose mending is another program: the peak falls by what was predicted.

    Attributes:
        rule: The tip that must be there.
        code: The cell; `{old}` stands in it.
        old: What is wrong.
        new: What is put in its place.
        measure: The counter whose peak falls.
        card: The virtual card.
        conf: Allocator settings of the second run.
        everything: Whether all tips are asked for.
        first: Whether it must be the first of them.
        stacks: Whether stacks are taken.
    """

    rule: str
    code: str
    old: str = ""
    new: str = ""
    measure: str = "allocated"
    card: str = "H100 80GB"
    conf: str | None = None
    everything: bool = False
    first: bool = True
    stacks: bool = False
    before: str = MODEL


FREEING = (
    Freeing(
        rule="checkpoint_kept",
        code="""
model = net()
checkpoint = {{"model": {{k: v.clone() for k, v in model.state_dict().items()}}, "epoch": 3}}
model.load_state_dict(checkpoint["model"])
model(batch()).sum().backward()
""".replace("{{", "{").replace("}}", "}"),
        action="del checkpoint",
        name="checkpoint",
    ),
    Freeing(
        rule="two_models",
        code="""
import copy

model = net()
twin = copy.deepcopy(model)
model(batch()).sum().backward()
model.zero_grad()
""",
        action="del twin",
        name="twin",
    ),
    Freeing(
        rule="graph_kept",
        code="""
model, total = net(), 0
for _ in range(4):
    total = total + model(batch()).square().mean()
""",
        action="total = total.detach()",
        name="total",
    ),
    Freeing(
        rule="graph_kept",
        code="""
model, losses = net(), []
for _ in range(4):
    losses.append(model(batch()).square().mean())
""",
        action="losses = [loss.detach() for loss in losses]",
        name="losses",
    ),
    Freeing(
        rule="grows_each_step",
        code="""
model, seen = net(), []
optimizer = torch.optim.SGD(model.parameters())
for _ in range(6):
    output = model(batch())
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    seen.append(output.detach().clone())
""",
        action="del seen",
        name="seen",
    ),
    Freeing(
        rule="reference_cycle",
        code="""
class Node:
    pass


import gc

gc.disable()
node = Node()
node.me, node.tensor = node, torch.randn(4096, 1024, device="cuda")
del node
""",
        action="gc.collect(); gc.enable()",
    ),
)

TRAIN = """
model = net({width}, {depth})
optimizer = torch.optim.{optimizer}
for step in range({steps}):
    loss = model(batch({rows}, {width})).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

REWRITING = (
    Rewriting(
        rule="no_grad_missing",
        code="""
model = net().eval()
{old}
for _ in range(3):
    output = model(batch(4096))
""",
        old="torch.set_grad_enabled(True)",
        new="torch.set_grad_enabled(False)",
    ),
    Rewriting(
        rule="gradients_kept",
        code="""
model = net(4096, 4)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(batch(16, 4096)).sum().backward()
    optimizer.step()
    {old}
with torch.no_grad():
    wide = model(batch(20000, 4096))
""",
        old="pass",
        new="optimizer.zero_grad()",
    ),
)
