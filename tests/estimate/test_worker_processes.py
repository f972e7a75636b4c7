"""The waiting process keeps nothing of an earlier program."""

import os
import sys

import pytest

pytest.importorskip("torch")
psutil = pytest.importorskip("psutil")

from nbmem import virtual
from nbmem.core.units import MIB
from nbmem.estimates.programs import programs
from nbmem.estimates.runs import worker_processes
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.estimates.runs.subprocess_client import EstimateError, EstimateProcess

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere each question has a process of its own"
)
PROGRAM = """
import json, subprocess, sys, torch
import mine
assert not hasattr(torch, "left_by_a_program")
torch.left_by_a_program = True
child = subprocess.Popen(["sleep", "600"])
open("child", "w").write(str(child.pid))
x = torch.zeros(mine.ROWS, 1 << 18, device="cuda")
"""
DYING = """
import os
import torch
os._exit(7)
"""


@pytest.fixture(autouse=True)
def _none_waits():
    worker_processes.end_all()
    yield
    worker_processes.end_all()


def probe_script(path):
    """Return a run's peak and the id of the answering process."""
    with EstimateProcess(programs.script(str(path))) as apart:
        found = apart.call(probe, Request(card=virtual.find_card("T4"))).probe
        assert found.failure is None
        return found.allocated, apart._process.pid


def test_two_questions_share_a_process_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "mine.py").write_text("ROWS = 2")
    worker_processes.prepare()
    prepared = worker_processes._waiting[0][1].pid
    first, pid = probe_script(tmp_path / "train.py")
    assert pid == prepared
    started = int((tmp_path / "child").read_text())
    (tmp_path / "mine.py").write_text("ROWS = 30")  # of another length: no cached bytecode
    second, again = probe_script(tmp_path / "train.py")
    assert (first, second) == (2 * MIB, 30 * MIB)
    assert again == pid
    # What the first program started was ended before the second one was answered.
    assert not psutil.pid_exists(started) or (
        psutil.Process(started).status() == psutil.STATUS_ZOMBIE
    )
    worker_processes.end_all()
    assert not psutil.pid_exists(pid)


def test_a_program_that_ends_its_process_is_told_and_the_next_has_another(tmp_path):
    (tmp_path / "dying.py").write_text(DYING)
    with (
        pytest.raises(EstimateError, match=r"ended by itself \(exit code 7\)"),
        EstimateProcess(programs.script(str(tmp_path / "dying.py"))) as apart,
    ):
        apart.call(probe, Request(card=virtual.find_card("T4")))
    assert worker_processes._waiting == []


def test_a_fork_of_the_client_leaves_the_process_alone():
    worker_processes._waiting.append((os.getpid() + 1, None))
    worker_processes.end_all()
    assert worker_processes._waiting == []


def test_a_process_is_prepared_where_none_waits():
    worker_processes.prepare()
    ((owner, first),) = worker_processes._waiting
    worker_processes.prepare()
    assert worker_processes._waiting == [(owner, first)]
    first.kill()
    first.wait()
    worker_processes.prepare()
    ((_, second),) = worker_processes._waiting
    assert second.pid != first.pid
    assert second.poll() is None
