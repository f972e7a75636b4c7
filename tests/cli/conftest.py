"""Fixtures that run `nbmem` in its own process."""

import os
import subprocess
import sys

import pytest

from tests.forked_command import run_forked

TRAIN = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(2):
    x = torch.randn(64, 256, device="cuda")
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""


@pytest.fixture
def train():
    """A script that trains for two steps and prints one line."""
    return TRAIN


@pytest.fixture
def nbmem(tmp_path):
    """Run `nbmem ARGUMENTS` in an empty folder; returns the finished process.

    With `new=True` Python is started anew, else it is forked from one that has imported torch.
    """

    def run(*arguments, new=False, env=None, **options):
        words = [str(argument) for argument in arguments]
        env = {"COLUMNS": "100", **(env or {})}
        if not new and not options:
            return run_forked(words, tmp_path, env, timeout=300)
        return subprocess.run(
            [sys.executable, "-m", "nbmem", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=300,
            env={**os.environ, **env},
            **options,
        )

    return run


@pytest.fixture
def script(tmp_path):
    """Write a script into that folder; returns its name."""

    def write(source, name="script.py"):
        (tmp_path / name).write_text(source)
        return name

    return write
