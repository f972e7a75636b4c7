"""Export formats for other programs hold the same bytes."""

import csv
import errno
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import nbmem
from nbmem.api.tracing import Trace
from nbmem.core.errors import NotWrittenError, UsageError
from nbmem.core.files.torch_snapshot import load_snapshot
from nbmem.core.session.categories import LIVE, Category
from nbmem.frontends.cli import main
from nbmem.report.analysis import card_ledger_of
from nbmem.views.exports import FORMATS, perfetto
from tests.recorded_runs import load, session_of


@pytest.fixture(scope="module")
def run():
    """A recorded run of a real card, as a trace."""
    trace = Trace("resnet18")
    trace.session = session_of(load("resnet50_b32_sgdm"))
    return trace


@pytest.fixture(scope="module")
def card_ledger(run):
    return card_ledger_of(run.session)


def test_every_format_is_written(run, tmp_path):
    for known in FORMATS:
        assert run.export(known.name, tmp_path / known.name).stat().st_size > 1000


def test_a_snapshot_leads_back_to_the_same_bytes(run, card_ledger, tmp_path):
    again = nbmem.open(run.export("snapshot", tmp_path / "run.pickle"))
    found = card_ledger_of(again.session)
    for curve in ("allocated", "active", "requested", "reserved"):
        assert np.array_equal(getattr(found, curve), getattr(card_ledger, curve)), curve
    for _, column in again.session.devices[0].end.blocks.columns():
        assert len(column) == len(card_ledger.trace.end.blocks)


def test_the_tools_of_torch_read_the_snapshot(run, card_ledger, tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="torch brings the tools")
    snapshot = load_snapshot(run.export("snapshot", tmp_path / "run.pickle"))
    assert "total_reserved: 3.4GiB" in viz.segsum(snapshot)
    assert f"{len(card_ledger.trace.events)} entries" in viz.trace(snapshot)
    assert "Active Memory Timeline" in viz.trace_plot(snapshot)


def test_an_allocation_says_what_it_is(run, card_ledger, tmp_path):
    trace = load_snapshot(run.export("snapshot", tmp_path / "run.pickle"))["device_traces"][0]
    a = card_ledger.allocations
    for row in range(0, len(a), 50):
        entry, label = trace[a.allocated_at[row]], Category(card_ledger.category[row]).label
        assert (entry["action"], entry["size"]) == ("alloc", a.requested[row])
        assert entry["category"] == label
        assert entry["frames"][-1]["name"].startswith(label)
        assert label in entry["user_metadata"]
    assert any(entry["category"] == "unknown" for entry in trace)  # memory_viz relies on it
    forward = next(s for _, s in card_ledger.phases.spans if (s.name, s.step) == ("forward", 1))
    inside = trace[forward.first[0] : forward.last[0]]
    assert all("forward, step 1" in entry["user_metadata"] for entry in inside)


def test_the_allocations_add_up_to_the_ledger(run, card_ledger, tmp_path):
    with run.export("csv", tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    a = card_ledger.allocations
    assert len(rows) == len(a)
    peak = card_ledger.peak(0, card_ledger.events)
    held = Counter()
    for row in card_ledger.live(peak).tolist():
        held[rows[row]["category"]] += int(rows[row]["bytes"])
    ledger = card_ledger.ledger(peak)
    assert {c.key: ledger[c] for c in LIVE if ledger[c]} == dict(held)
    assert sum(row["freed_us"] == "" for row in rows) == (a.freed == card_ledger.events).sum()


def test_the_counters_of_every_moment_add_up(run, card_ledger, tmp_path):
    trace = json.loads(run.export("perfetto", tmp_path / "run.json").read_text())
    counters = [e for e in trace["traceEvents"] if e["ph"] == "C"]
    sums, parts = counters[::2], counters[1::2]
    assert len(sums) > 1000
    for whole, split in zip(sums, parts, strict=True):
        assert whole["ts"] == split["ts"]
        assert sum(split["args"].values()) == whole["args"]["reserved"]
    assert max(e["args"]["allocated"] for e in sums) == card_ledger.allocated.max()
    assert max(e["args"]["reserved"] for e in sums) == card_ledger.reserved.max()


def test_a_recording_of_the_host_names_no_card(card_ledger):
    info = replace(card_ledger.trace.info, kind="cpu", name="a machine")
    host = SimpleNamespace(session=card_ledger.session, trace=SimpleNamespace(info=info))
    title = next(perfetto._names(host))["args"]["name"]
    assert title == f"{card_ledger.session.name}: host memory"


def test_the_slices_are_the_phases(run, tmp_path):
    trace = json.loads(run.export("perfetto", tmp_path / "run.json").read_text())
    phases = [e for e in trace["traceEvents"] if e.get("cat") == "phase"]
    assert [(e["name"], e["args"].get("step"), e["args"]["peak_allocated"]) for e in phases] == [
        (row.name, row.step, row.peak_allocated) for row in run.report().phases
    ]
    steps = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "step"]
    assert steps == ["step 0", "step 1", "step 2"]


def test_an_unknown_format_is_named_with_those_that_are_known(run, tmp_path):
    with pytest.raises(UsageError, match=r"Did you mean perfetto.*html, json, csv, perfetto"):
        run.export("perfeto", tmp_path / "x")


def test_the_command_line_exports_what_was_saved(run, tmp_path, capsys):
    saved, out = run.save(tmp_path / "run.nbmem"), tmp_path / "run.csv"
    assert main(["export", "csv", str(saved), str(out)]) == 0
    assert out.read_text().startswith("allocation,bytes,block,category")
    assert main(["export", "csv", str(saved), str(tmp_path / "no" / "run.csv")]) == 2
    assert "there is no folder" in capsys.readouterr().err


NASTY = "=HYPERLINK(1)\ud800\x1b[2J</script>" + "n" * 1_000_000


def test_texts_of_strangers_survive_every_format_and_are_no_formulas(run, tmp_path):
    trace = Trace(NASTY)
    trace.session = replace(
        run.session,
        name=NASTY,
        names=(NASTY,),
        notes=(NASTY,),
        error=NASTY,
        spans=tuple(replace(span, name=NASTY) for span in run.session.spans),
    )
    for known in FORMATS:
        written = trace.export(known.name, tmp_path / known.name)
        assert b"\x1b[2J" not in written.read_bytes()
    with (tmp_path / "csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    named = {row[key] for row in rows for key in ("name", "cell", "phase")}
    assert any("HYPERLINK" in text for text in named)
    assert not any(text.startswith("=") for text in named)
    assert all(len(text) < 1_100 for text in named)
    json.loads((tmp_path / "json").read_text())
    assert (tmp_path / "html").stat().st_size < 2_000_000


def test_an_export_that_fails_keeps_the_older_file(run, tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    for known in FORMATS:
        target = tmp_path / known.name
        target.write_text("old")
    monkeypatch.setattr("nbmem.core.files.atomic_write.os.open", full)
    for known in FORMATS:
        with pytest.raises(NotWrittenError, match="the disk is full"):
            run.export(known.name, tmp_path / known.name)
        assert (tmp_path / known.name).read_text() == "old"
