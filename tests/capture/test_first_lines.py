"""The user's lines of large allocations, without stacks of all."""

import numpy as np
import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.capture.record import recorder
from nbmem.core.session.privacy import private_session
from nbmem.report.analysis import card_ledger_of
from nbmem.report.analysis.allocation_lines import allocation_lines

MIB = 2**20
CODE = """\
import torch
net = torch.nn.Linear(512, 512).cuda()
def double(x):
    return x * 2
with torch.no_grad():
    for _ in range({steps}):
        y = double(net(torch.ones(1024, 512, device="cuda")))
"""


@pytest.fixture(autouse=True)
def card():
    with virtual.activated("T4") as gpu:
        torch.cuda.init()
        yield gpu


@pytest.fixture
def record(tmp_path):
    def run(steps, **options):
        path = tmp_path / "train.py"
        path.write_text(CODE.format(steps=steps), encoding="utf-8")
        names = {"__name__": "__main__"}
        with nbmem.trace("cell", namespace=names, **options) as trace:
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
        return trace.session

    return run


def lines_of_size(session, size):
    card_ledger = card_ledger_of(session)
    lines = allocation_lines(card_ledger)
    rows = np.flatnonzero(card_ledger.allocations.requested == size).tolist()
    return [lines.get(row) for row in rows]


def test_a_recording_without_stacks_has_lines_of_large_allocations_only(record):
    session = record(3)
    (device,) = session.devices
    assert session.stacks == ()
    assert session.source is None
    assert (device.events.stack == -1).all()
    assert (device.end.blocks.stack == -1).all()
    made = lines_of_size(session, 2 * MIB)
    texts = {(one.lines[0].place, one.by_module, one.lines[0].text) for one in made}
    loop = 'y = double(net(torch.ones(1024, 512, device="cuda")))'
    assert texts == {
        ("train.py:7", False, loop),
        ("train.py:7", True, loop),  # the layer's own
        ("train.py:4", False, "return x * 2"),
    }
    (called,) = {one.lines[1].place for one in made if one.lines[0].frame.function == "double"}
    assert called == "train.py:7"


def test_stacks_end_and_later_allocations_have_the_line_of_equal_ones(record, monkeypatch):
    monkeypatch.setattr(recorder, "VIRTUAL_FIRST_ENTRIES", 20)
    session = record(30)
    events = session.devices[0].events
    with_lines = {event for _, event, _ in session.facts["lines"]["rows"]}
    assert 3 <= len(with_lines) < 30
    assert max(with_lines) < len(events) / 2
    assert all(lines_of_size(session, 1 * MIB))


def test_requested_stacks_are_all_kept(record, monkeypatch):
    monkeypatch.setattr(recorder, "VIRTUAL_FIRST_ENTRIES", 1)
    session = record(20, stacks=True)
    events = session.devices[0].events
    assert session.stacks
    assert (events.stack[events.size == 2 * MIB] >= 0).sum() >= 20


def test_the_users_own_history_is_left_as_it_is(record):
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=1000)
    try:
        session = record(3)
        assert "lines" not in session.facts
        assert torch.cuda.memory._snapshot()["device_traces"][0][-1].get("frames", []) == []
    finally:
        torch.cuda.memory._record_memory_history(None)


def test_a_private_session_has_no_text_and_no_folder(record, tmp_path):
    session = private_session(record(2))
    assert {text for *_, text in session.facts["lines"]["frames"]} == {""}
    assert str(tmp_path) not in str(session.facts)
    (found, *_) = filter(None, lines_of_size(session, 2 * MIB))
    assert found.lines[0].place.endswith("train.py:7")
