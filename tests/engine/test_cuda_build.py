"""The engine itself, where a CUDA build of torch is: both engines side by side."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbmem.engine import availability

pytestmark = pytest.mark.skipif(
    availability.unavailable() is not None or availability.missing_tools() is not None,
    reason="the engine torch needs a CUDA build of torch, and a compiler",
)

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import torch
from torch import nn

batch = 64
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = torch.randn(batch, 1024, device="cuda")
    loss = nn.functional.cross_entropy(model(x), torch.zeros(batch, device="cuda").long())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def nbmem(tmp_path):
    """Run `nbmem ARGUMENTS` with PROGRAM as train.py; returns the finished process."""
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "nbmem", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_both_engines_report_the_same_bytes(nbmem, tmp_path):
    peaks = {}
    for engine, named in (("rules", "virtual"), ("torch", "virtual, engine torch")):
        done = nbmem("run", "train.py", "--gpu", "T4", "--engine", engine, "--json", "out.json")
        assert done.returncode == 0, done.stderr
        assert f"on Tesla T4 ({named})" in done.stdout
        report = json.loads((tmp_path / "out.json").read_text())
        assert (report["device"]["virtual"], report["device"]["engine"]) == (True, engine)
        peaks[engine] = [report["peak"][name] for name in ("allocated", "reserved")]
    assert peaks["torch"] == peaks["rules"]


def test_a_script_ends_as_it_would_by_itself(nbmem, tmp_path):
    (tmp_path / "train.py").write_text("import sys, torch\ntorch.ones(9).cuda()\nsys.exit(7)")
    assert nbmem("run", "train.py", "--engine", "torch", "--gpu", "L4").returncode == 7


def test_only_a_report_with_convolutions_says_what_is_not_known_of_them(nbmem, tmp_path):
    code = "import torch\nx = torch.ones(2, 8, 9, 9).cuda()\n"
    for more, notes in (("", 0), ("torch.nn.Conv2d(8, 8, 3).cuda()(x)\n", 1)):
        (tmp_path / "train.py").write_text(code + more)
        done = nbmem("run", "train.py", "--engine", "torch", "--json", "out.json")
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "out.json").read_text())["notes"]
        assert sum("Work areas of convolutions" in note for note in found) == notes


def test_small_values_are_computed_and_masks_are_what_they_are(nbmem, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "x = torch.arange(6.0).cuda()\n"
        "print((x * 2 - 1).tolist(), torch.nonzero(x > 2).size(), bool((x >= 0).all()))"
    )
    done = nbmem("run", "train.py", "--engine", "torch", "--gpu", "L4", "--quiet")
    assert done.stdout == "[-1.0, 1.0, 3.0, 5.0, 7.0, 9.0] torch.Size([3, 1]) True\n"


def test_both_engines_find_the_same_largest_batch(nbmem, tmp_path):
    best = {}
    for engine in ("rules", "torch"):
        line = ("fit", "train.py", "--vary", "batch", "--gpu", "T4", "--engine", engine)
        done = nbmem(*line, "--json", "out.json")
        assert done.returncode == 0, done.stderr
        answer = json.loads((tmp_path / "out.json").read_text())
        assert answer["card"]["engine"] == engine
        best[engine] = answer["best"]
    assert best["torch"] == best["rules"]


def test_a_model_has_the_same_layers(nbmem, tmp_path):
    rows = {}
    for engine in ("rules", "torch"):
        line = ("layers", "train.py", "model", "--input", "8,1024", "--engine", engine)
        done = nbmem(*line, "--json", "out.json")
        assert done.returncode == 0, done.stderr
        rows[engine] = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert rows["torch"] == rows["rules"]
