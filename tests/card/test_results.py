"""Results files survive torn lines, interruptions and crashes."""

import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.card.__main__ import PATIENCE_S, measure, run_parts
from tests.card.parts import ALL, PARTS, Part, Share
from tests.card.results import Writer, folder_name, read_results
from tests.card.run_part import OUT_OF_TIME, fill

ABOUT = {
    "card": "NVIDIA H100 80GB HBM3",
    "driver": "580.159.04",
    "torch": "2.13.0+cu130",
    "cuda": "13.0",
    "real": True,
}
LONG = time.monotonic() + 1e6


def numbers(count, called):
    """Make cases 0 to `count` and record in `called` which were run."""

    def run(number):
        called.append(number)
        return 2 * number

    return [(str(number), lambda number=number: run(number)) for number in range(count)]


def test_a_second_start_runs_what_is_missing_and_nothing_else(tmp_path):
    path, called = tmp_path / "part.jsonl", []
    cases = numbers(4, called)
    moments = iter([0.0, 0.0, LONG + 1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(moments))
        assert not fill(path, ABOUT, cases, LONG)
    assert called == [0, 1]
    assert not read_results(path).complete
    assert fill(path, {"card": "another"}, cases, LONG)
    assert called == [0, 1, 2, 3]
    found = read_results(path)
    assert found.cases == {"0": 0, "1": 2, "2": 4, "3": 6}
    assert found.head == ABOUT
    assert found.complete
    assert fill(path, ABOUT, cases, LONG)
    assert called == [0, 1, 2, 3]


def test_cases_beside_each_other_are_run_once_each_and_end_in_whole_lines(tmp_path):
    path, called, both = tmp_path / "part.jsonl", [], threading.Barrier(2, timeout=20)

    def run(number):
        both.wait()  # alone it would not go on
        called.append(number)
        return [number] * 1000

    cases = [(str(number), partial(run, number)) for number in range(10)]
    assert fill(path, ABOUT, cases, LONG, workers=2)
    assert sorted(called) == list(range(10))
    assert read_results(path).cases == {str(number): [number] * 1000 for number in range(10)}
    assert read_results(path).complete
    assert not fill(tmp_path / "late.jsonl", ABOUT, cases, time.monotonic(), workers=2)


def test_a_torn_line_is_none_and_the_next_stands_on_its_own(tmp_path):
    path = tmp_path / "part.jsonl"
    fill(path, ABOUT, numbers(2, []), LONG)
    whole = path.read_text().removesuffix('{"complete": true}\n')
    path.write_text(whole + '{"case": "2", "fou')
    assert read_results(path).cases == {"0": 0, "1": 2}
    assert fill(path, ABOUT, numbers(3, []), LONG)
    assert read_results(path).cases == {"0": 0, "1": 2, "2": 4}


def test_what_a_case_raises_is_its_finding(tmp_path):
    def refused():
        raise RuntimeError("no such kernel\nand a trace")

    fill(tmp_path / "part.jsonl", ABOUT, [("one", refused)], LONG)
    assert read_results(tmp_path / "part.jsonl").cases == {"one": "RuntimeError: no such kernel"}


def test_a_case_that_ends_its_process_is_tried_twice(tmp_path):
    path, called = tmp_path / "part.jsonl", []
    for _ in range(2):
        writer = Writer(path, ABOUT)
        writer.begin("1")
    assert fill(path, ABOUT, numbers(3, called), LONG)
    assert called == [0, 2]
    assert "1" not in read_results(path).cases


KILLED = """
import sys, time
from pathlib import Path
from tests.card.run_part import fill
def slow(): print("begun", flush=True); time.sleep(60)
fill(Path(sys.argv[1]), {"card": "T4"}, [("a", lambda: 1), ("b", slow)], time.monotonic() + 99)
"""


def test_a_killed_process_leaves_what_it_had(tmp_path):
    path, root = tmp_path / "part.jsonl", Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGKILL)
    assert read_results(path).cases == {"a": 1}
    called = []
    assert fill(path, ABOUT, [("a", None), ("b", lambda: called.append("b"))], LONG)
    assert called == ["b"]


def fakes(*names, seconds=10):
    return [Part(name, seconds, name) for name in names]


def test_parts_run_in_order_each_in_its_time_and_none_that_is_complete(tmp_path):
    ran = []

    def run(part, path, seconds):
        ran.append((part.name, round(seconds)))
        fill(path, ABOUT, numbers(2, []), LONG)
        return 0

    assert run_parts(fakes("a", "b"), tmp_path, time.monotonic() + 15, run) == {
        "a": "complete, 2 cases",
        "b": "complete, 2 cases",
    }
    assert ran == [("a", 10), ("b", 10)]
    run_parts(fakes("a", "b", "c", seconds=40), tmp_path, time.monotonic() + 15, run)
    assert ran[2:] == [("c", 15)]


def test_a_part_that_is_cut_says_so(tmp_path):
    def run(_part, path, _seconds):
        return 0 if fill(path, ABOUT, numbers(2, []), time.monotonic()) else OUT_OF_TIME

    assert run_parts(fakes("a"), tmp_path, time.monotonic() + 15, run) == {
        "a": "cut, its time was over, 0 cases"
    }
    slow = Part("readings", 30, "it has not even imported torch")
    assert measure(slow, tmp_path / "readings.jsonl", 0.1 - PATIENCE_S) == OUT_OF_TIME


INTERRUPTED = """
import sys, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background's child ignores it
from tests.card import __main__ as card
card.results_folder = lambda: os.kill(os.getpid(), signal.SIGINT) or "card"
sys.argv = ["card", "--out", sys.argv[1]]
card.main()
"""


def test_ctrl_c_is_a_sentence_at_any_time(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stderr == f"\nInterrupted: start it again to go on. So far: {tmp_path}\n"


def test_no_part_begins_when_the_time_is_over(tmp_path):
    def run(*_):
        raise AssertionError

    assert run_parts(fakes("a"), tmp_path, time.monotonic(), run) == {
        "a": "not begun, no time was left, 0 cases"
    }


def test_a_part_that_crashes_goes_on_behind_the_case_and_one_that_cannot_start_is_left(tmp_path):
    ran = []

    def run(part, path, seconds):
        ran.append(part.name)
        if part.name == "never":
            return 1
        if ran.count("crashes") < 3:
            Writer(path, ABOUT).begin("0")
            return -signal.SIGSEGV
        return 0 if fill(path, ABOUT, numbers(2, []), LONG) else OUT_OF_TIME

    stand = run_parts(fakes("never", "crashes"), tmp_path, time.monotonic() + 60, run)
    assert ran == ["never", "crashes", "crashes", "crashes"]
    assert stand == {"never": "not complete, 0 cases", "crashes": "complete, 1 cases"}


def test_all_of_it_is_a_quarter_of_an_hour():
    assert sum(part.seconds for part in PARTS) <= 15 * 60


def test_shares_have_each_case_once_and_a_file_of_their_own():
    shares = [Share.read(f"{number}/3") for number in (1, 2, 3)]
    assert [share.file("models") for share in (ALL, shares[1])] == [
        "models.jsonl",
        "models.2of3.jsonl",
    ]
    taken = [list(share.of_cases(range(8))) for share in shares]
    assert taken == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert list(shares[1].of_cases(range(8), 4)) == [1]
    assert Share.read(str(shares[2])) == shares[2]
    for wrong in ("0/3", "4/3"):
        with pytest.raises(ValueError, match=wrong):
            Share.read(wrong)


def test_no_folder_of_another_machine_is_taken_for_a_real_cards():
    real = "NVIDIA-H100-80GB-HBM3-580.159.04-torch-2.13.0+cu130-cuda-13.0"
    assert folder_name(ABOUT) == real
    assert folder_name({**ABOUT, "real": False}) == f"NO-REAL-CARD-{real}"
