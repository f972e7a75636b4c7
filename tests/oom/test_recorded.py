"""Out-of-memory errors recorded on an H100, explained to the byte."""

import dataclasses
import lzma

import pytest

import nbmem
from nbmem.core.units import GIB
from nbmem.report.analysis import build_report
from tests.recorded_runs import SNAPSHOTS, snapshot_counters


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Read a session by name, with the counters at labelled moments."""
    folder = tmp_path_factory.mktemp("snapshots")

    def read(name):
        path = folder / f"{name}.pickle"
        path.write_bytes(lzma.decompress((SNAPSHOTS / f"{name}.pickle.xz").read_bytes()))
        marks = {mark["label"]: mark for mark in snapshot_counters(name)}
        return nbmem.open(path).session, marks

    return read


def test_the_error_of_a_limited_process(recorded):
    session, marks = recorded("oom")
    after = marks["after oom"]
    (oom,) = build_report(session).ooms
    assert (oom.asked, oom.wanted) == (308281344, 308281344)
    assert oom.free == 81183440896
    assert (oom.allocated, oom.reserved) == (after["allocated"], after["reserved"])
    assert (oom.given_back, oom.largest, oom.pieces) == (0, 78118912, 157483008)
    assert oom.at.line == "train.py:28 in train_img"
    assert oom.caught
    assert oom.reason.startswith(
        "A memory limit for this process: 1.38 GiB were reserved, 294.0 MiB more were needed, and "
        "the card itself had 75.61 GiB free."
    )
    first = oom.remedies[0]
    assert first.rule == "memory_limit"
    assert first.ground == "simulated"


def test_what_lives_only_for_the_failure_is_gone_when_its_frames_are(recorded):
    session, marks = recorded("oom")
    (oom,) = build_report(session).ooms
    held = sum(group.requested for group in oom.holders)
    assert held <= oom.allocated
    assert oom.allocated - marks["frames gone"]["allocated"] == 1217925120
    assert marks["frames gone"]["allocated"] == marks["load"]["allocated"]


def test_torchs_message_names_the_limit(recorded):
    session, marks = recorded("oom")
    error = f"OutOfMemoryError: {marks['oom']['message']}"
    (oom,) = build_report(dataclasses.replace(session, error=error)).ooms
    assert not oom.caught
    assert oom.limit == round(1.58 * GIB)
    assert oom.command.arguments == ("traceback",)


def test_what_torch_gave_back_before_it_gave_up(recorded):
    session, _ = recorded("gc")
    (oom,) = build_report(session).ooms
    assert (oom.asked, oom.wanted) == (562878464, 564133888)
    assert oom.given_back == 50331648
    assert oom.reserved == 2336227328


@pytest.mark.parametrize("name", ["retry", "fragmentation", "train_resnet50"])
def test_where_a_retry_served_it_nothing_is_said(recorded, name):
    session, _ = recorded(name)
    assert build_report(session).ooms == ()
