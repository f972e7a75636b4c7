"""A trace leaves nothing behind, by a census that finds planted leaks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leaks import planted

ROOT = Path(__file__).parents[2]


def in_a_process(tmp_path, *words):
    """Run Python in a process with folders of its own."""
    folders = {name: str(tmp_path) for name in ("TMPDIR", "IPYTHONDIR", "XDG_RUNTIME_DIR")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **folders, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def census_of_plants(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("the leaks that are planted are made as on Linux")
    code = "from tests.leaks import planted; planted.main()"
    ended = in_a_process(tmp_path_factory.mktemp("planted"), "-c", code)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("---\n")


@pytest.mark.parametrize("kind", planted.PLANTED)
def test_the_census_finds_a_leak_of_each_kind(census_of_plants, kind):
    assert planted.PLANTED[kind][1] in census_of_plants[1]


def test_what_has_a_bound_is_no_leak(census_of_plants):
    assert census_of_plants[0].strip() == ""


USUAL = [("cells", None), ("cells", "T4")]
OTHERS = [("blocks", None), ("blocks", "T4"), ("reloads", None), ("reloads", "T4")]


@pytest.mark.parametrize("place", ["gc.callbacks", "sys.path_hooks", "weakref.finalize._registry"])
def test_the_census_finds_what_others_keep_of_a_package(census_of_plants, place):
    assert place in census_of_plants[2]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "card"), [*USUAL, *(pytest.param(*one, marks=pytest.mark.long) for one in OTHERS)]
)
def test_a_trace_leaves_nothing_behind(tmp_path, scene, card):
    words = [] if card is None else ["--on", card]
    ended = in_a_process(tmp_path, "-m", "tests.leaks", scene, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
