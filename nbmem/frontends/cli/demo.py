"""`nbmem demo`: train a small network and explain its memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.frontends.cli.run import trace_script
from nbmem.frontends.cli.script import Script
from nbmem.frontends.cli.subcommand import Subcommand, write_out

if TYPE_CHECKING:
    import argparse

PROGRAM = '''\
"""Train a small CNN for three steps."""
import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(128 * 8 * 8, 512), nn.ReLU(), nn.Linear(512, 10),
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(3):
    images = torch.randn(256, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 10, (256,), device="cuda")
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
'''


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--gpu", metavar="NAME", default="auto", help="a virtual card to run it on")


def run(options: argparse.Namespace) -> int:
    """Show the program, run it, and print its report."""
    write_out(PROGRAM)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "demo.py")
        path.write_text(PROGRAM, encoding="utf-8")
        options.stacks, options.quiet = False, False
        return trace_script(Script(str(path), ()), options)


COMMAND = Subcommand("demo", "train a small network and explain its memory", configure, run)
