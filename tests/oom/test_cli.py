"""Out of memory on the command line, and comparison of recordings."""

import json

import pytest

from tests.forked_command import run_forked

pytestmark = pytest.mark.torch
SCRIPT = """
import sys, torch
from torch import nn
model = nn.Sequential(*[nn.Linear(4096, 4096, device="cuda") for _ in range(8)])

def train(rows):
    model(torch.randn(rows, 4096, device="cuda")).sum().backward()

train(int(sys.argv[1]))
"""


@pytest.fixture
def nbmem(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*words):
        return run_forked(words, tmp_path, {}, timeout=300)

    return run


def test_a_script_that_runs_out_of_memory_is_explained_and_still_fails(nbmem, tmp_path):
    options = ("--gpu", "T4", "--stacks", "--json", "oom.json")
    done = nbmem("run", "train.py", *options, "--", "120000")
    assert done.returncode == 1
    assert "OutOfMemoryError: CUDA out of memory." in done.stderr
    assert "Ran out of memory: 1.83 GiB asked for, " in done.stdout
    assert " free, at train.py:7 in train, in model." in done.stdout
    assert "%nbmem free" not in done.stdout
    (found,) = json.loads((tmp_path / "oom.json").read_text())["out_of_memory"]
    assert found["asked"] == 120000 * 4096 * 4
    assert (found["phase"], found["caught"]) == ("forward", False)
    assert sum(found["ledger"].values()) == 15360 << 20


def test_what_the_failed_functions_hold_is_named(nbmem, tmp_path):
    (tmp_path / "failed.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device='cuda')\n"
        "model = nn.TransformerEncoder(layer, 6)\n"
        "def train():\n"
        "    model(torch.randn(80, 512, 1024, device='cuda')).sum().backward()\n"
        "train()\n"
    )
    done = nbmem("run", "failed.py", "--gpu", "T4")
    assert done.returncode == 1
    assert "activations: saved by model, " in done.stdout


def test_two_recordings_are_compared(nbmem, tmp_path):
    for rows in ("1000", "3000"):
        name = f"{rows}.nbmem"
        done = nbmem("run", "train.py", "--gpu", "T4", "--quiet", "--save", name, "--", rows)
        assert done.returncode == 0, done.stderr
    done = nbmem("diff", "1000.nbmem", "3000.nbmem", "--json", "diff.json")
    assert done.returncode == 0
    assert "\nA = 1000.nbmem\nB = 3000.nbmem\n" in done.stdout
    changes = json.loads((tmp_path / "diff.json").read_text())["changes"]
    inputs = next(c for c in changes if (c["kind"], c["name"]) == ("category", "inputs"))
    assert inputs["change"] == 2000 * 4096 * 4
    assert nbmem("diff", "1000.nbmem").returncode == 2
    assert "--steps 1 are not two steps" in nbmem("diff", "1000.nbmem", "--steps", "1").stderr
