"""`nbmem demo`: train a small network and explain its memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.frontends.cli.run import trace_script
from nbmem.frontends.cli.script import Script
from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, print_message, write_out

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


PAGE = "nbmem-demo.html"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--gpu", metavar="NAME", default="auto", help="a virtual card to run it on")
    parser.add_argument(
        "--open", action="store_true", help=f"write the report to {PAGE} and open it in the browser"
    )


def run(options: argparse.Namespace) -> int:
    """Show the program, run it, and print its report."""
    from nbmem.capture.torch_cuda import import_torch

    if import_torch() is None:
        raise UsageError("The demo trains a network in torch, which is missing: pip install torch.")
    write_out(PROGRAM)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "demo.py")
        path.write_text(PROGRAM, encoding="utf-8")
        options.stacks, options.quiet = False, False
        options.html = PAGE if options.open else None
        status = trace_script(Script(str(path), ()), options)
    if options.open and status == EXIT_OK:
        open_page(Path(PAGE).resolve())
    return status


def open_page(page: Path) -> None:
    """Open a page in the user's browser, or name it where there is none."""
    import webbrowser

    opened = webbrowser.open(page.as_uri())
    print_message(f"opened {page}" if opened else f"no browser was found; open {page} in one.")


COMMAND = Subcommand("demo", "train a small network and explain its memory", configure, run)
