"""Phases of torch's own snapshots, against what the programs that were recorded did."""

from pathlib import Path

import pytest

from nbmem.core.events import Action, Events
from nbmem.core.snapshot_session import session_of_snapshot
from nbmem.core.stack_phases import phases_of

SNAPSHOTS = Path(__file__).parents[1] / "recordings" / "snapshots"
STEP = ["forward", "backward", "optimizer"]


def phases(name):
    spans = session_of_snapshot(SNAPSHOTS / f"{name}.pickle.xz").spans
    return [(span.name, span.step) for span in spans if span.kind == "phase"]


def test_nine_steps_of_changing_length_are_nine_steps():
    found = [phase for phase in phases("variable_lengths") if phase[0] != "input"]
    assert found == [("load", None), *((name, step) for step in range(9) for name in STEP)]


def test_forwards_without_a_backward_are_told_apart_by_their_call():
    assert phases("loss_accumulation") == [("load", None), *(("forward", i) for i in range(4))]


@pytest.mark.parametrize("name", ["fragmentation", "reserved_unused", "retry"])
def test_a_program_without_modules_has_no_phases(name):
    assert phases(name) == []


def test_phases_lie_side_by_side_and_cover_every_event():
    session = session_of_snapshot(SNAPSHOTS / "train_gpt2_amp.pickle.xz")
    spans = [span for span in session.spans if span.kind == "phase"]
    edges = [(span.first[0], span.last[0]) for span in spans]
    assert [first for first, _ in edges[1:]] == [last for _, last in edges[:-1]]
    assert (edges[0][0], edges[-1][1]) == (0, len(session.devices[0].events))
    assert Action.SEGMENT_FREE not in session.devices[0].events.action[: edges[0][1]]


def test_nothing_is_told_of_no_events():
    assert phases_of(Events.empty(), ()) == ()
