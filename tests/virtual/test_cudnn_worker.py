"""The cuDNN worker process after interrupts, forks and hangs."""

import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the virtual card answers torch")

from nbmem.virtual.card_names import find_card
from nbmem.virtual.hardware.cudnn import client
from nbmem.virtual.hardware.cudnn.problem import Problem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="cuDNN is asked on Linux")

# The number of images says what the worker does; it is its answer, too.
ENDS, HANGS, SAYS_NO_LIST, SAYS_NO_ANSWER = 101, 102, 103, 104
STANDS_IN = """#!{python}
import json, sys, time
with open({starts!r}, "a") as file:
    file.write("x")
for line in sys.stdin:
    images = json.loads(line)[0]["source"][0][0]
    if images == 101:
        raise SystemExit
    if images == 102:
        time.sleep(60)
    said = {{103: 5, 104: [{{"bytes": 1}}]}}.get(images, [{{"nbytes": images, "tiling": None}}])
    print(json.dumps(said), flush=True)
"""


@pytest.fixture
def starts(monkeypatch, tmp_path):
    """Count the starts of a fake worker."""
    worker, counted = tmp_path / "worker", tmp_path / "starts"
    worker.write_text(STANDS_IN.format(python=sys.executable, starts=str(counted)))
    worker.chmod(0o755)
    monkeypatch.setattr(client, "library_path", lambda: Path("/none/cudnn/lib/libcudnn.so.9"))
    monkeypatch.setattr(sys, "executable", str(worker))
    return lambda: len(counted.read_text())


@pytest.fixture
def asked(starts):
    made = client.CudnnClient(find_card("H100"))
    yield made
    made.close()


def images(count):
    source, window = ((count, 8, 8, 8), (512, 64, 8, 1)), ((8, 8, 3, 3), (72, 9, 3, 1))
    pairs = (1, 1), (1, 1), (1, 1)
    flags = {"tf32": True, "deterministic": False}
    return Problem("forward", "float32", source, window, source, *pairs, **flags)


def answers(asked, *counts):
    found = [asked.first_kernel(images(count)) for count in counts]
    return [answer and answer.nbytes for answer in found]


def test_what_was_interrupted_is_asked_of_another_worker(asked, starts):
    def interrupt(*_):
        raise KeyboardInterrupt

    assert answers(asked, 1) == [1]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            asked.first_kernel(images(HANGS))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert answers(asked, 2, 3) == [2, 3]
    assert starts() == 2


def test_an_interrupt_of_the_terminal_s_group_is_not_for_the_worker(asked):
    assert answers(asked, 1) == [1]
    assert os.getpgid(asked._process.pid) != os.getpgrp()


def test_a_child_that_was_forked_has_its_own_worker(asked, starts, monkeypatch):
    assert answers(asked, 1) == [1]
    parents = asked._process
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert answers(asked, 1, 2) == [1, 2]
    assert parents.poll() is None
    assert starts() == 2
    parents.communicate()


@pytest.mark.parametrize("goes_wrong", [ENDS, SAYS_NO_LIST, SAYS_NO_ANSWER])
def test_one_question_that_cannot_be_answered_leaves_the_others(asked, goes_wrong):
    assert answers(asked, 1, goes_wrong, 2) == [1, None, 2]


def test_workers_that_end_are_not_started_forever(asked, starts):
    others = range(client.MOST_LOST)
    for other in others:
        asked.first_kernel(images(other))
        asked._process.kill()
    assert answers(asked, *others, 99) == [*others, None]
    assert starts() == client.MOST_LOST


def test_a_worker_that_never_answered_is_asked_once(asked, starts):
    assert answers(asked, ENDS, 1) == [None, None]
    assert starts() == 1


def test_a_worker_that_hangs_is_not_waited_for_twice(asked, starts, monkeypatch):
    assert answers(asked, 1) == [1]
    monkeypatch.setattr(client, "PATIENCE_S", 0.1)
    assert answers(asked, HANGS, 2) == [None, None]
    assert starts() == 1


def test_python_s_own_modules_come_before_the_program_s(monkeypatch, tmp_path):
    """A notebook beside a `random.py` of its own would have no worker."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    places = client._environment(Path("/none/cudnn/lib/libcudnn.so.9"))["PYTHONPATH"]
    first, *_, last = places.split(os.pathsep)
    assert first == str(Path(os.__file__).parent)
    assert str(tmp_path) in places
    assert last != str(tmp_path)


@pytest.mark.skipif(client.library_path() is None, reason="cuDNN is not installed")
def test_cudnn_s_log_is_no_answer(monkeypatch):
    monkeypatch.setenv("CUDNN_LOGDEST_DBG", "stdout")
    monkeypatch.setenv("CUDNN_LOGLEVEL_DBG", "3")
    asked = client.CudnnClient(find_card("H100"))
    try:
        assert asked.first_kernel(images(8)) is not None
    finally:
        asked.close()
