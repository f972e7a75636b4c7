"""Programs with one fault each, and what mends it."""

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
    """A fault whose remedy frees memory at once.

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
    """A fault whose remedy is another program.

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
        remedy: The remedy in words; "" where `new` says it.
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
    remedy: str = ""
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
    *(
        Freeing(
            rule="grows_each_step",
            code=f"""
class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net(depth=4)
        {kept}

    def forward(self, x):
        h = self.body[0](x)
        self.memory = torch.cat([self.memory, {joined}])
        return self.body(x)

model = Remembers()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(batch(2048)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
            action="model.memory = None",
            name="`model.memory` grows by 8.0 MiB",
        )
        for kept, joined in (
            ("self.memory = torch.zeros(0, 1024).cuda()", "x"),
            ("self.register_buffer('memory', torch.zeros(0, 1024).cuda())", "h.detach()"),
        )
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
        action="gc.collect()",
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
        card="T4",
    ),
    Rewriting(
        rule="fragmentation",
        code="""
model, optimizer = net(1024, 8), None
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for rows in (2000, 3100, 4700, 6100, 7900, 9300, 11100, 12700):
    model(batch(rows)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        conf="expandable_segments:True",
        measure="reserved",
        card="T4",
    ),
    Rewriting(
        rule="data_parallel",
        code="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(256, 32000)
    def forward(self, x):
        y = self.body(x)
        return y.logsumexp(1).mean().view(1) if {old} else y

model = nn.DataParallel(Net()).cuda()
for _ in range(2):
    y = model(batch(4096, 256))
    (y.mean() if y.dim() == 1 else y.logsumexp(1).mean()).backward()
""",
        old="False",
        new="True",
        card="2xT4",
        remedy="the loss in `forward`",
    ),
    Rewriting(
        rule="autocast_copies",
        code="""
model = net(4096, 28)
with torch.no_grad(), torch.autocast("cuda", torch.float16{old}):
    for _ in range(2):
        y = model(batch(64, 4096))
""",
        new=", cache_enabled=False",
        card="T4",
    ),
    Rewriting(
        rule="autocast",
        code="""
model = net(1024, 12)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled={old}):
        loss = model(batch(8192)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        old="False",
        new="True",
        remedy="autocast to bfloat16",
        everything=True,
        first=False,
    ),
    Rewriting(
        rule="checkpointing",
        code="""
import functools
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

model = Net().cuda()
{old}
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
for _ in range(2):
    model(batch(4096, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        old="pass",
        new="""
for block in model.blocks:
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
""",
        remedy="checkpoint around each block",
        everything=True,
        first=False,
    ),
    Rewriting(
        rule="inplace_activations",
        code="""
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU({old}), nn.Linear(4096, 8)).cuda()
with torch.no_grad():
    for _ in range(2):
        model(batch(8192, 64))
""",
        old="inplace=False",
        new="inplace=True",
        everything=True,
        first=False,
        stacks=True,
    ),
    Rewriting(
        rule="optimizer_state",
        code="""
model = net(2048, 8)
optimizer = torch.optim.AdamW(model.parameters(), {old})
for _ in range(3):
    model(batch(16, 2048)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        old="fused=False",
        new="fused=True",
        everything=True,
        first=False,
    ),
    Rewriting(
        rule="offload",
        code="""
import contextlib
model = net(1024, 12)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
for _ in range(2):
    with {old}:
        loss = model(batch(8192)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        old="contextlib.nullcontext()",
        new="torch.autograd.graph.save_on_cpu(pin_memory=True)",
        everything=True,
        first=False,
    ),
    Rewriting(
        rule="checkpoint_on_gpu",
        code="""
import io
file = io.BytesIO()
torch.save({f"{i}.weight": torch.zeros(2048, 2048) for i in range(8)}, file)
file.seek(0)
model = net(2048, 8)
state = torch.load(file, map_location={old})
del state
with torch.no_grad():
    model(batch(16, 2048))
""",
        old="'cuda'",
        new="'cpu'",
        remedy='map_location="cpu"',
        stacks=True,
    ),
)
