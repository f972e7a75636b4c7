"""The runner of the capture tests: isolation and counts."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.oracle.only_virtual import ONLY_VIRTUAL, reason
from tests.oracle.probes import PROBES, read_result, split, table
from tests.oracle.process_per_test import in_a_child

ROOT = Path(__file__).parents[2]


def test_a_child_says_its_lines_and_how_it_ended():
    lines, end = in_a_child(lambda write: [write(b"one\n"), write(b"two\n")], patience=60)
    assert (lines, end) == ([b"one", b"two"], "ended with 0")


def test_a_child_that_crashes_costs_what_it_had_not_said():
    def crash(write):
        write(b"one\ntw")
        os.kill(os.getpid(), signal.SIGSEGV)

    assert in_a_child(crash, patience=60) == ([b"one"], "was ended by signal 11")


def test_a_child_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr("tests.oracle.process_per_test.ENDS_S", 0.1)

    def hang(write):
        write(b"one\n")
        time.sleep(600)

    assert in_a_child(hang, patience=0.5) == ([b"one"], "did not end in time")


def test_every_end_is_counted_in_its_place(tmp_path):
    def case(name, inside=""):
        return f'<testcase classname="{name}" name="t">{inside}</testcase>'

    path = tmp_path / "probes.xml"
    path.write_text(
        "<testsuite>"
        + case("tests.capture.test_a")
        + case("tests.capture.test_b", '<failure message="no"/>')
        + case("tests.capture.test_b", '<skipped message="only the virtual card: its own"/>')
        + case("tests.cli.test_cli_run", '<skipped message="no torch"/>')
        + "</testsuite>"
    )
    found = {
        "tests": read_result(path, 12.3, pytest.ExitCode.TESTS_FAILED),
        "tests/gone": read_result(tmp_path / "gone.xml", 4),
    }
    assert table(found).splitlines()[2:] == [
        "| tests | 1 | 1 | 1 | 1 | 12 |",
        "| tests/gone | 0 | 1 | 0 | 0 | 4 |",
        "| all | 1 | 2 | 1 | 1 | 16 |",
        "",
        "- tests/capture/test_b.py::t",
        "- gone: its process",
    ]


def test_a_part_that_pytest_refuses_has_failed(tmp_path):
    path = tmp_path / "probes.xml"
    path.write_text("<testsuite/>")
    assert read_result(path, 1, pytest.ExitCode.USAGE_ERROR).failed == ("probes: its process",)
    assert not read_result(path, 1, pytest.ExitCode.OK).failed


def test_tests_are_told_from_options_of_pytest():
    test = "tests/oom/test_cli.py::test_x"
    assert split(["-k", "peak", test]) == ([test], ["-k", "peak"])
    assert split(["-x"]) == (list(PROBES), ["-x"])


def test_what_is_listed_is_there():
    for name in [*PROBES, *ONLY_VIRTUAL]:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8"), name
    assert reason("tests/notebook/test_gpu.py::test_x") is not None
    assert reason("tests/capture/test_training_loops.py::test_x") is None


def test_nothing_in_the_wiring_knows_the_oracle():
    """A card is what torch and NVML say it is; only sources of the virtual card's rules name it."""
    for path in (ROOT / "nbmem").rglob("*.py"):
        if not {"virtual", "engine"} & set(path.parts):
            assert not re.search(r"STANDIN_|\boracle\b", path.read_text("utf-8")), path
