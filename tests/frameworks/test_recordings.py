"""Other frameworks in a recording, its ledger, file and views."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.api.render import read
from nbmem.capture.record.framework_log import STRIKES, FrameworkLog
from nbmem.core.errors import FileFormatError
from nbmem.core.files.session import open_session, save_session
from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.frameworks import FrameworkReadings, Share
from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.views.explorer.data import explorer_data
from nbmem.views.exports.report import report_json
from nbmem.views.text import render_text
from tests.frameworks.conftest import hold

C = Category
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def card():
    with virtual.activated("H100 80GB") as gpu:
        torch.empty(1, device="cuda")
        yield gpu


@pytest.fixture
def trace(card, cupy):
    """A recording beside 6 GiB of CuPy's, of which 400 MiB are in use."""
    hold(card, cupy, 6 * GIB, 400 * MIB)
    with nbmem.trace("train", namespace={}) as t:
        kept = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    del kept
    return t


def test_the_ledger_has_them_to_the_byte(trace, card):
    ledger = trace.report().ledger_at_end
    assert ledger.owners == (Share(name="cupy", held=6 * GIB, used=400 * MIB),)
    assert ledger[C.FRAMEWORKS] == 400 * MIB
    assert ledger[C.FRAMEWORKS_CACHED] == 6 * GIB - 400 * MIB
    assert ledger[C.CONTEXT] == card.context_bytes
    assert ledger.process == card.process_bytes
    assert ledger[C.FREE] == card.free_bytes
    for row in trace.report().phases:
        row.ledger_at_peak.check()


def test_every_view_names_them(trace):
    text = render_text(trace.report())
    assert "  CuPy            " in text
    assert "  CuPy, cached    " in text
    written = report_json(trace.report())
    told = {"name": "cupy", "held": 6 * GIB, "used": 400 * MIB, "managed": 0}
    assert written["frameworks_at_end"] == written["frameworks_at_peak"] == [told]
    assert written["ledger_at_end"]["frameworks"] == 400 * MIB
    drawn = {row["key"]: row for row in explorer_data(trace.report())["categories"]}
    assert drawn["frameworks_cached"]["label"] == "CuPy, cached"
    assert "CuPy holds 6.00 GiB, of it in use 400.0 MiB" in drawn["frameworks"]["meaning"]


def test_a_file_has_them_and_an_older_one_is_read(trace, tmp_path):
    session = trace.session
    path = save_session(session, tmp_path / "a")
    again = open_session(path)
    for (name, column), (_, other) in zip(
        session.devices[0].owners.columns(), again.devices[0].owners.columns(), strict=True
    ):
        assert np.array_equal(column, other), name
    older = replace(session, devices=(replace(session.devices[0], owners=None),))
    ledger = CardLedger(open_session(save_session(older, tmp_path / "b"))).ledger(0)
    assert ledger.owners == ()
    assert ledger[C.CONTEXT] == trace.report().ledger_at_end[C.CONTEXT] + 6 * GIB


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("owner", 99, "owners.owner"),
        ("held", -5, "owners.held"),
        ("used", 7 * GIB, "uses more than it holds"),
        ("managed", -1, "owners.managed"),
        ("t_ns", -1, "owners.t_ns"),
    ],
)
def test_a_file_that_cannot_be_so_is_refused(trace, tmp_path, column, value, message):
    device = trace.session.devices[0]
    wrong = replace(device.owners, **{column: np.array([value], np.int64)})
    session = replace(trace.session, devices=(replace(device, owners=wrong),))
    with pytest.raises(FileFormatError, match=message):
        open_session(save_session(session, tmp_path / "wrong"))


def test_what_is_freed_within_a_recording_is_gone(card, cupy):
    hold(card, cupy, 6 * GIB, 400 * MIB)
    with nbmem.trace("train", namespace={}) as t:
        torch.empty(MIB, device="cuda")
        hold(card, cupy, 0, 0)
    assert t.session.devices[0].owners.held.tolist() == [6 * GIB, 0]
    ledger = t.report().ledger_at_end
    assert ledger.owners == ()
    assert ledger[C.CONTEXT] == card.context_bytes


def test_more_than_the_process_holds_is_not_believed(card, cupy):
    notes = []
    log = FrameworkLog(notes.append)
    share = Share(name="cupy", held=6 * GIB, used=0)
    for at in range(STRIKES):
        assert not notes
        log.add(0, at, (share,), GIB)
    assert "it says that it holds 6442450944 B, and no more than 1073741824 B lie" in notes[0]
    assert not len(log.readings(0, {}))
    cupy.held = 6 * GIB  # but the card does not know of it
    with nbmem.trace("train", namespace={}) as t:
        torch.empty(MIB, device="cuda")
    ledger = t.report().ledger_at_end
    assert ledger.owners == ()
    assert ledger[C.CONTEXT] == card.context_bytes


def test_a_reading_in_the_middle_of_a_change_keeps_the_last_one():
    notes, names = [], {}
    log = FrameworkLog(notes.append)
    small, large = (Share(name="cupy", held=n, used=n) for n in (3, 9))
    for t_ns, share, most in ((1, small, 5), (2, large, 5), (3, large, 9)):
        log.add(0, t_ns, (share,), most)
    assert log.readings(0, names).held.tolist() == [3, 9]
    assert log.readings(0, names).t_ns.tolist() == [1, 3]
    assert not notes


@pytest.fixture(scope="module")
def base():
    with virtual.activated("H100 80GB"), nbmem.trace("train", namespace={}) as t:
        kept = [torch.empty(MIB, device="cuda") for _ in range(20)]
    del kept
    return t.session


def with_owners(session, readings, *names):
    """A session whose owners are numbered from the first of these names."""
    readings = replace(readings, owner=readings.owner + len(session.names))
    trace = replace(session.devices[0], owners=readings)
    return replace(session, devices=(trace,), names=(*session.names, *names))


rows = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 90 * GIB), st.integers(0, 100), st.integers(0, GIB)
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(table=rows)
def test_the_ledger_balances_whatever_frameworks_report(base, table):
    trace = base.devices[0]
    times = np.linspace(trace.samples.t_ns[0], trace.samples.t_ns[-1], len(table)).astype(np.int64)
    readings = FrameworkReadings.from_rows(
        (t_ns, owner, held, NOT_KNOWN if part > 90 else held * part // 100, managed)
        for t_ns, (owner, held, part, managed) in zip(times.tolist(), table, strict=True)
    )
    card_ledger = CardLedger(with_owners(base, readings, "cupy", "rmm", "jax", "numba"))
    for position, ledger in enumerate(card_ledger.ledgers(range(card_ledger.events + 1))):
        ledger.check(allocated=int(card_ledger.allocated[position]))
        assert ledger[C.FREE] >= 0


def test_managed_memory_is_told_and_not_counted(base):
    readings = FrameworkReadings.from_rows([(0, 0, 0, 0, 40 * GIB)])
    report = read(with_owners(base, readings, "rmm"), None).report
    before = read(base, None).report
    assert report.ledger_at_end.held == before.ledger_at_end.held
    text = " ".join(render_text(report).split())
    assert "RMM has 40.00 GiB of managed memory (cudaMallocManaged) at the end" in text
    assert "so here it stands with other processes: at most " in text
    told = report_json(report)["managed_at_end"]
    assert told["bytes"] == 40 * GIB
    assert told["within"] == "other_processes"
    assert told["on_card_at_most"] == report.ledger_at_end[C.OTHER_PROCESSES]
    assert json.dumps(report_json(report))
