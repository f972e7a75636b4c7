"""Python blocks of docs/integrations.md run with their packages."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the page takes memory with torch")

from nbmem import virtual
from tests.ipython_shell import shell_on_virtual_card

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
BLOCKS = re.findall(
    r"(?<!processes -->\n)^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
SLOW = ("lightning", "transformers", "wandb", "mlflow")
"""Their blocks are run by `make integrations` alone, where all of them are installed."""
READER = """
import nbmem
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def train(steps):
    for step in range(steps):
        model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def _needs(block):
    names = re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE)
    needed = {name for name in names if name not in {"nbmem", "torch"}}
    return needed | ({"tensorboard"} if "tensorboard" in block else set())


def _pytest_runs(block, folder):
    (folder / "test_block.py").write_text(f"import torch\n{READER}\n{block}")
    words = ["-p", "no:nbmem", "-p", "nbmem.integrations.pytest_plugin", "--nbmem-gpu=T4"]
    command = [sys.executable, "-m", "pytest", *words, "test_block.py"]
    path = str(PAGE.parents[1])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout
    return True


def test_the_blocks_of_the_page_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    all_there = all(map(importlib.util.find_spec, SLOW))
    ran = 0
    with shell_on_virtual_card(monkeypatch) as shell:
        shell.run_cell(READER).raise_error()
        for block in BLOCKS:
            if "import pytest" in block:
                ran += all_there and _pytest_runs(block, tmp_path)
                continue
            needed = _needs(block)
            missing = [name for name in needed if importlib.util.find_spec(name) is None]
            if missing or (needed & set(SLOW) and not all_there):
                compile(block, PAGE.name, "exec")
                continue
            shell.run_cell(block.replace("9400", "0")).raise_error()
            ran += 1
        if "server" in shell.user_ns:
            shell.user_ns["server"].shutdown()
            shell.user_ns["server"].server_close()
    assert ran >= 3
    assert len(BLOCKS) == ran or not all_there
    assert virtual.active() is None
