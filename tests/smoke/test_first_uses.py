"""First steps of a user on any torch: `tools/torches.py --smoke`.

Each test notes the figure that it saw, for the table of releases in docs/where.md.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = [pytest.mark.torch, pytest.mark.long]

CNN = """\
import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(64, 10),
).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    images = torch.randn(64, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (64,), device="cuda")
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""
TRANSFORMER = """\
import torch
from torch import nn

layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
model = nn.Sequential(
    nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
    nn.Linear(256, 1000),
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    tokens = torch.randint(0, 1000, (16, 128), device="cuda")
    with torch.autocast("cuda", torch.float16):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
COMPILED = """\
import torch

model = torch.compile(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(256, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
VARIED = """\
import torch

batch = 64
model = torch.nn.Linear(1024, 1024).cuda()
model(torch.randn(batch * 1024, 1024, device="cuda")).relu().sum().backward()
"""
LOAD = "%load_ext nbmem\n%nbmem gpu T4"
MODEL = """\
import torch
net = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(net.parameters())
"""
TRACED = """\
%%memtrace
for _ in range(3):
    net(torch.randn(64, 1024, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CELLS = (LOAD, MODEL, TRACED, "torch.cuda.max_memory_allocated()")


@pytest.fixture
def nbmem(tmp_path):
    """Run `nbmem COMMAND ... --json FILE` in an empty folder; returns what it wrote there."""

    def run(command, *arguments, program=None):
        words = [command, *arguments, "--json", "seen.json"]
        if program is not None:
            (tmp_path / "program.py").write_text(program)
            words.insert(1, "program.py")
        done = subprocess.run(
            [sys.executable, "-m", "nbmem", *words],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert "fault of nbmem" not in done.stdout + done.stderr
        return json.loads((tmp_path / "seen.json").read_text())

    return run


def assert_trained(report):
    """Check that weights, gradients and optimizer state are named."""
    ledger = report["ledger_at_peak"]
    assert sum(ledger.values()) == report["device"]["total_bytes"]
    assert ledger["weights"] > 0
    assert ledger["gradients"] > 0 or ledger["activations"] > 0
    assert report["unknown"] <= report["peak"]["allocated"] // 20, report["notes"]
    assert {"forward", "backward", "optimizer"} <= {phase["name"] for phase in report["phases"]}
    assert not [note for note in report["notes"] if "please report" in note]


def mib(nbytes):
    return f"{nbytes / 2**20:.1f} MiB"


def test_demo(record_property):
    done = subprocess.run(
        [sys.executable, "-m", "nbmem", "demo", "--gpu", "T4"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fault of nbmem" not in done.stdout + done.stderr
    (peak,) = [line for line in done.stdout.splitlines() if line.startswith("Peak ")]
    record_property("seen", peak.removeprefix("Peak ").partition(": ")[0])


def test_cnn(nbmem, record_property):
    report = nbmem("run", "--gpu", "T4", program=CNN)
    assert_trained(report)
    record_property("seen", mib(report["peak"]["allocated"]))


def test_transformer_with_autocast(nbmem, record_property):
    report = nbmem("run", "--gpu", "T4", program=TRANSFORMER)
    assert_trained(report)
    assert report["ledger_at_peak"]["optimizer_state"] > 0
    record_property("seen", mib(report["peak"]["allocated"]))


def test_compile_is_planned_or_refused_in_a_sentence(nbmem, record_property):
    from nbmem.virtual.patches.compiled.compiler import PLANNED
    from nbmem.virtual.warnings import COMPILE, is_unplanned

    report = nbmem("run", "--gpu", "T4", program=COMPILED)
    assert_trained(report)
    assert [note for note in report["notes"] if is_unplanned(note)] == [COMPILE] * (not PLANNED)
    how = "planned" if PLANNED else "eager, with a note"
    record_property("seen", f"{mib(report['peak']['allocated'])}, {how}")


def test_fit(nbmem, record_property):
    answer = nbmem("fit", "--vary", "batch", "--gpu", "T4", program=VARIED)
    assert answer["best"] == 1203
    record_property("seen", str(answer["best"]))


def test_traced_cell_in_a_kernel(record_property):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    (report,) = [
        output.data["text/plain"]
        for output in book.cells[2].outputs
        if output.output_type == "display_data" and "text/html" in output.data
    ]
    assert "net.weight (1024, 1024)" in report
    assert "fault of nbmem" not in report
    record_property("seen", mib(int(book.cells[3].outputs[0].data["text/plain"])))
