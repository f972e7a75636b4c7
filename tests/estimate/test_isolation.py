"""Estimates run in their own process and leave the notebook unchanged."""

import json
import os
import random
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nbmem
from nbmem import virtual
from nbmem.estimates.programs import environment, programs
from nbmem.estimates.programs.serialization import pack
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.estimates.runs.subprocess_client import EstimateError, EstimateProcess
from tests.forked_command import run_forked


@pytest.fixture
def notebook():
    """Names of a notebook whose model trains on a virtual card."""
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtual.NbmemWarning)
        virtual.activate("A100 40GB")
        exec(
            """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(512, 512)
        self.b = nn.Linear(512, 512)
        self.b.weight = self.a.weight
    def forward(self, x):
        return half(self.b(self.a(x)))

def half(x):
    return x * scale

scale = 0.5
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(4, 512, device="cuda")).sum().backward()
optimizer.step()
counts = [1, 2, 3]
labels = torch.arange(5)
stream = (n for n in range(3))
""",
            names,
        )
        yield names


CELL = """
torch.manual_seed(7)
scale = 2.0
counts.append(4)
labels += 1
batch = 8
for step in range(2):
    model(torch.randn(batch, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model.a = nn.Linear(512, 512)
del optimizer
"""


def test_nothing_of_the_notebook_changes(notebook):
    model, optimizer = notebook["model"], notebook["optimizer"]
    state = optimizer.state[model.a.weight]["exp_avg"]
    card, held = virtual.active(), torch.cuda.memory_allocated()
    before = {**notebook}
    seeds = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    threads = threading.active_count()

    found = nbmem.fit(programs.cell(CELL, notebook, vary="batch"), "T4", between=(8, 16))

    assert found.best == 16
    assert notebook == before
    assert notebook["counts"] == [1, 2, 3]
    assert notebook["labels"].tolist() == [0, 1, 2, 3, 4]
    assert notebook["scale"] == 0.5
    assert model.b.weight is model.a.weight
    assert optimizer.state[model.a.weight]["exp_avg"] is state
    assert virtual.active() is card
    assert torch.cuda.memory_allocated() == held
    assert torch.equal(torch.get_rng_state(), seeds[0])
    assert random.getstate() == seeds[1]
    assert (np.random.get_state()[1] == seeds[2]).all()  # noqa: NPY002
    assert threading.active_count() == threads


def test_the_copy_holds_the_same_bytes(notebook):
    with EstimateProcess(
        programs.cell("model.train()\ntorch.zeros(1, device='cuda')", notebook)
    ) as apart:
        found = apart.call(probe, Request(card=virtual.find_card("T4"))).probe
    model = notebook["model"]
    weights = sum(p.nbytes for p in model.parameters())  # tied ones once
    assert found.held["weights"] == weights
    assert found.held["gradients"] == weights


def test_what_cannot_be_copied_is_said_by_name(notebook):
    program = programs.cell("next(stream)\nbatch = 3", notebook, vary="batch")
    assert program.names.left_out == (("stream", "a generator"),)
    with pytest.raises(nbmem.core.errors.UsageError, match="stream is a generator"):
        nbmem.fit(program, "T4", between=(3, 3))


def test_a_function_is_estimated_with_what_its_closure_holds():
    width = 256

    def train():
        layer = nn.Linear(width, width).cuda()
        layer(torch.randn(8, width, device="cuda")).sum().backward()

    trace = nbmem.estimate(train, gpu="T4")
    assert trace.report().device.name == "Tesla T4"
    assert not torch.cuda.is_initialized()
    assert trace.report().peak.allocated > width * width * 4 * 2


CONFIG = """
import dataclasses, contextlib

@dataclasses.dataclass
class Config:
    batch: int = 4

@contextlib.contextmanager
def doubled():
    yield 2 * Config().batch
"""


def test_what_a_library_wrapped_travels_as_code(monkeypatch):
    main = sys.modules["__main__"]
    names = {"__name__": "__main__"}
    exec(CONFIG, names)
    for name in ("Config", "doubled"):  # a kernel's names are those of its __main__
        monkeypatch.setattr(main, name, names[name], raising=False)
    parcel = pack(names, ["doubled"])
    monkeypatch.undo()
    found = {}
    parcel.open(found)
    with found["doubled"]() as count:
        assert count == 8
    assert repr(found["Config"](2)) == "Config(batch=2)"
    assert found["Config"] is not names["Config"]


def test_a_process_that_dies_is_a_sentence(tmp_path):
    path = tmp_path / "die.py"
    path.write_text("import os\nos._exit(3)\n")
    apart = EstimateProcess(programs.script(str(path)))
    with pytest.raises(EstimateError, match=r"ended by itself \(exit code 3\)"), apart:
        apart.call(probe, Request(card=virtual.find_card("T4")))


LEAVES_ALL_RUNNING = """
import subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
open({path!r}, "w").write(str(child.pid))
threading.Thread(target=time.sleep, args=(1e6,)).start()
print("x" * 1_000_000)
torch.zeros(8, device="cuda")
"""


def test_threads_and_processes_of_the_program_end_with_the_estimate(tmp_path):
    path = tmp_path / "pid.txt"
    program = programs.cell(LEAVES_ALL_RUNNING.format(path=str(path)), {"torch": torch})
    with EstimateProcess(program) as apart:
        assert apart.call(probe, Request(card=virtual.find_card("T4"))).probe.fits
        pid = int(path.read_text())
        os.kill(pid, 0)
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SURROUNDED = """
import os, random
import numpy as np
seen = dict(
    dtype=torch.get_default_dtype(), grad=torch.is_grad_enabled(),
    device=str(torch.empty(0).device), benchmark=torch.backends.cudnn.benchmark,
    matmul=torch.get_float32_matmul_precision(), flash=torch.backends.cuda.flash_sdp_enabled(),
    deterministic=torch.are_deterministic_algorithms_enabled(),
    autocast=torch.get_autocast_dtype("cuda"), folder=os.getcwd(), word=os.environ["NBMEM_WORD"],
    numbers=(random.random(), np.random.rand(), torch.rand(1, device="cpu").item()),
)
with open("seen", "a") as lines:
    print(seen, file=lines)
torch.set_default_dtype(torch.float16)
torch.set_grad_enabled(True)
torch.set_default_device("cpu")
os.environ["NBMEM_WORD"] = "turned"
os.chdir("/")
torch.zeros(1, device="cuda")
"""


def test_every_run_begins_as_the_notebook_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NBMEM_WORD", "as it was")
    before = environment.capture_state()
    virtual.activate("T4")
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_default_device("cuda")
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.enable_flash_sdp(enabled=False)
        torch.use_deterministic_algorithms(mode=True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        with EstimateProcess(programs.cell(SURROUNDED, {"torch": torch})) as apart:
            request = Request(card=virtual.find_card("T4"))
            assert [apart.call(probe, request).probe.failure for _ in range(2)] == [None, None]
        numbers = random.random(), np.random.rand(), torch.rand(1, device="cpu").item()  # noqa: NPY002
    finally:
        virtual.deactivate()
        before.put()
    assert torch.get_default_device() == torch.device("cpu")
    first, second = (tmp_path / "seen").read_text().splitlines()
    assert first == second
    assert eval(first, {"torch": torch}) == {
        "dtype": torch.float64, "grad": False, "device": "cuda:0", "benchmark": True,
        "matmul": "medium", "flash": False, "deterministic": True, "autocast": torch.bfloat16,
        "folder": str(tmp_path), "word": "as it was", "numbers": numbers,
    }  # fmt: skip


VISIBLE = """
import os, subprocess, sys
child = [sys.executable, "-c", "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"]
with open("seen", "a") as f:
    f.write(repr(os.environ.get("CUDA_VISIBLE_DEVICES")) + " ")
    f.write(subprocess.run(child, capture_output=True, text=True, stdin=-3).stdout)
os.environ["CUDA_VISIBLE_DEVICES"] = "7"
torch.zeros(1, device="cuda")
"""


@pytest.mark.parametrize("own", [None, "1,2"])
def test_a_program_reads_its_own_visible_cards_and_sees_none(tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if own is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    with EstimateProcess(programs.cell(VISIBLE, {"torch": torch})) as apart:
        request = Request(card=virtual.find_card("T4"))
        assert [apart.call(probe, request).probe.failure for _ in range(2)] == [None, None]
    assert (tmp_path / "seen").read_text().splitlines() == [f"{own!r} '-1'"] * 2


def test_an_interrupt_ends_the_process(notebook):
    apart = EstimateProcess(programs.cell("batch = 1", notebook, vary="batch")).__enter__()
    process = apart._process
    apart.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert process.returncode in {-9, -15, 1}  # 1: it ended its fork first


def test_the_command_line_writes_both_files(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nrows = 64\nx = torch.zeros(rows, 1 << 20, device='cuda')\n"
    )
    line = "fit train.py --vary rows --gpu T4 --between 64 8192 --margin 0"
    words = [*line.split(), "--json", "o.json", "--html", "o.html"]
    done = run_forked(words, tmp_path, {}, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "o.json").read_text())
    card = virtual.find_card("T4")
    room = card.total_bytes - card.context_bytes
    assert found["best"] == room // (4 << 20)  # one tensor in one segment of its own
    assert done.stdout.startswith(f"rows = {found['best']} fits on a Tesla T4")
    assert (tmp_path / "o.html").read_text().startswith("<!DOCTYPE html>")
