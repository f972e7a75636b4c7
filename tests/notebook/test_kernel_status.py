"""The kernel's status file for `nbmem gpus`."""

import json
import os
import sys

import pytest

from nbmem.core.files import kernel_status
from nbmem.frontends.notebook import extension
from nbmem.frontends.notebook.extension import unload_ipython_extension
from tests.faults.fake_nvml import FakeNvml
from tests.ipython_shell import shell_on_virtual_card

torch = pytest.importorskip("torch")

MIB = 2**20


@pytest.fixture
def shell(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with shell_on_virtual_card(monkeypatch) as shell:
        yield shell


def status_file():
    place = kernel_status.status_folder() / f"{os.getpid()}.json"
    return json.loads(place.read_text()) if place.exists() else None


def test_the_status_file_exists_while_there_is_something_to_report(shell):
    shell.run_cell("x = 1", store_history=True)
    assert status_file() is None
    shell.run_cell("%%memtrace\nx = torch.ones(1 << 20, device='cuda')", store_history=True)
    found = status_file()
    assert (found["pid"], found["cell"]) == (os.getpid(), "In [3]")
    assert (found["allocated"], found["held"]) == (4 * MIB, [["user tensors", 4 * MIB]])
    assert found["reserved"] >= found["allocated"]
    if shell in extension._LOADED:
        unload_ipython_extension(shell)
    assert status_file() is None


def test_the_magic_lists_the_processes_on_the_cards(shell, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    shell.run_cell("%nbmem gpus")
    told = capsys.readouterr().out
    assert "0  H100: 3.00 GiB of 80.00 GiB in use" in told
    assert "This process runs on a virtual card and sees no other." in told
