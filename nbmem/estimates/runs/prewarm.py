"""Import and prepare, once, the modules that every run needs."""

from __future__ import annotations

import importlib

from nbmem.engine import process
from nbmem.estimates.programs.programs import CALL, Program
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.virtual import find_card

_MODULES = (
    "torch",
    "torch._dynamo",
    "torch._decomp.decompositions_for_jvp",
    "nbmem.api.tracing",
    "nbmem.api.render",
    "nbmem.capture.record.recorder",
    "nbmem.virtual.patches.activation",
)
_SOURCE = """
import torch
from torch import nn
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LayerNorm(288),
    nn.Dropout(), nn.Linear(288, 8),
).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(
            model(torch.randn(4, 3, 8, 8, device="cuda")), torch.zeros(4, device="cuda").long()
        )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def load() -> None:
    """Import the modules that a run imports."""
    for name in _MODULES:
        importlib.import_module(name)


def run() -> None:
    """Run a small program once on a virtual card.

    On the engine torch nothing is run: each run has a fork that has not used the card.
    """
    if process.active():
        return
    from nbmem.estimates.programs.serialization import pack

    program = Program(title="warm-up", source=_SOURCE, file=CALL, names=pack({}, ()))
    probe(program, Request(card=find_card("T4")))
