"""Two kernels of one real Jupyter server, by name and on request."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

client = pytest.importorskip("jupyter_client", reason="the kernels are Jupyter's")

FAKE = """\
import json, os, sys, types
sys.path.insert(0, {root!r})
from tests.faults.fake_nvml import FakeNvml
library = FakeNvml()
Row = types.SimpleNamespace
library.nvmlDeviceGetComputeRunningProcesses = lambda handle: [
    Row(pid=pid, usedGpuMemory=2 << 30) for pid in json.loads(os.environ.get("PIDS", "[]"))
]
library.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: []
sys.modules["pynvml"] = library
"""
"""A driver for the process that asks: no card is here, so these pids are what it would say."""
LOAD = "%load_ext nbmem\n%nbmem gpu T4"
HOLD = """\
import torch
kept = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')
gone = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')
del gone"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def kernels(lab):
    """Starts a notebook's kernel on the server: its pid, and a client of it."""
    clients = []

    def start(name):
        lab.notebook(name, "")
        form = {"path": name, "type": "notebook", "name": name, "kernel": {"name": "python3"}}
        asked = urllib.request.Request(
            f"{lab.url}api/sessions", json.dumps(form).encode(), method="POST"
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            kernel = json.load(answer)["kernel"]["id"]
        file = lab.runtime / f"kernel-{kernel}.json"
        one = client.BlockingKernelClient(connection_file=str(file))
        one.load_connection_file()
        one.start_channels(hb=False)
        one.wait_for_ready(timeout=90)
        clients.append(one)
        return int(run(one, "import os; print(os.getpid())")), one

    yield start
    for one in clients:
        one.stop_channels()


def run(kernel, code):
    """Run a cell; return what it prints and shows."""
    text = []

    def hear(message):
        content = message["content"]
        text.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

    reply = kernel.execute_interactive(code, timeout=120, output_hook=hear)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(text)


def nbmem(lab, *words, answer, pids):
    """Run `nbmem` in a terminal of the user; return its output."""
    code = (
        FAKE.format(root=str(ROOT))
        + "from nbmem.frontends.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env=lab.environment | {"PIDS": json.dumps(pids)},
        input=answer,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_each_kernel_is_named_reports_its_memory_and_accepts_requests(kernels, lab):
    mine, here = kernels("mine.ipynb")
    other, there = kernels("other.ipynb")
    run(there, LOAD)
    run(there, HOLD)
    run(here, f"import os; os.environ['PIDS'] = '[{mine}, {other}]'")
    run(here, FAKE.format(root=str(ROOT)))
    run(here, "%load_ext nbmem")
    rows = {line.split()[0]: line for line in run(here, "%nbmem gpus").splitlines() if line.strip()}
    assert "mine.ipynb (this process); busy" in rows[str(mine)]
    held = "64.0 MiB allocated of 128.0 MiB reserved"
    assert f"other.ipynb; idle; after In [3] {held}" in rows[str(other)]

    pids = [mine, other]
    seen = nbmem(lab, "gpus", answer="", pids=pids)
    assert f"other.ipynb; idle; after In [3] {held}" in seen.stdout, seen
    refused = nbmem(lab, "gpus", "--free", str(other), answer="n\n", pids=pids)
    assert "Nothing has changed." in refused.stderr
    freed = nbmem(lab, "gpus", "--free", str(other), answer="y\n", pids=pids)
    assert "64.0 MiB" in freed.stdout, freed
    assert run(there, "print(torch.cuda.memory_reserved() >> 20, kept.shape[0] >> 20)") == "64 64\n"
    silent = nbmem(lab, "gpus", "--free", str(mine), answer="y\n", pids=pids)
    assert "no nbmem in it" in silent.stderr  # it holds nothing, so it says nothing

    assert nbmem(lab, "gpus", "--shut-down", str(other), answer="y\n", pids=pids).returncode == 0
    assert [one["path"] for one in lab.get("api/sessions")] == ["mine.ipynb"]
    assert nbmem(lab, "gpus", "--free", str(os.getpid()), answer="y\n", pids=pids).returncode == 2
