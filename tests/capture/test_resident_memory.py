"""Parts of host memory: shared tensors, files and page cache."""

import gc
import json

import pytest
import torch

np = pytest.importorskip("numpy")

import nbmem.api.tracing as nbmem
from nbmem.capture.devices import resident_memory as hosts
from nbmem.capture.devices.host import Host
from nbmem.capture.devices.resident_memory import own_bytes, resident_parts
from nbmem.core.session.host_memory import PARTS, MachineParts, MachineReadings
from nbmem.report.ledger.outside_torch import parts_at
from nbmem.views.explorer.data import explorer_data
from nbmem.views.explorer.size_limit import thinned
from nbmem.views.html import render_html
from nbmem.views.text import render_text

MIB = 1 << 20
SHARED = 4 * MIB


def traced(names):
    with nbmem.trace("cell", namespace=names) as t:
        names["net"] = net = torch.nn.Linear(512, 512)
        names["queue"] = torch.full((SHARED // 4,), 2.0).share_memory_()
        net(torch.ones(8, 512)).sum().backward()
    return t


@pytest.fixture(scope="module")
def trace():
    gc.collect()
    return traced({})


def test_shared_tensors_to_the_byte(trace):
    end = trace.report().ledger_at_end
    end.check()
    assert end.machine.tensors == SHARED


def test_a_mapped_file_is_shared_and_one_that_is_let_go_of_is_not(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(3 * MIB))
    names = {}
    with nbmem.trace("cell", namespace=names) as t:
        names["mapped"] = torch.from_file(str(path), shared=True, size=3 * MIB, dtype=torch.uint8)
        names["gone"] = torch.ones(MIB, dtype=torch.uint8).share_memory_()
        net = torch.nn.Linear(8, 8)
        net(torch.ones(1, 8))
        del names["gone"]
        net(torch.ones(1, 8))
    report = t.report()
    assert report.ledger_at_end.machine.tensors == 3 * MIB
    assert report.ledger_at_peak.machine.tensors == 4 * MIB


def test_parts_are_no_categories_and_never_more_than_what_they_are_parts_of(trace):
    report = trace.report()
    for ledger in (report.ledger_at_peak, report.ledger_at_end):
        parts = ledger.machine
        assert (parts.files or 0) + (parts.shared or 0) <= ledger.process
        assert parts.tensors <= ledger.active
        assert parts.cache is None or parts.cache <= ledger.total_bytes - ledger.used


@pytest.mark.skipif(Host().read(None, 0, whole=True).shared is None, reason="Linux says so")
def test_text_page_and_json_say_them(trace, tmp_path):
    report = trace.report()
    text = render_text(report)
    lines = [line.strip() for line in text.splitlines()]
    heads = [line for line in lines if line.startswith(("= tensors", "= process", "available"))]
    for head, part in zip(heads, ("of it shared", "of it files", "of it page cache"), strict=True):
        assert lines[lines.index(head) + 1].startswith(f"{part} ")
    assert "of it shared memory" in render_html(report)
    trace.export("json", tmp_path / "report.json")
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["machine_at_end"]["tensors_shared"] == SHARED
    assert told["machine_at_end"]["process_shared"] >= SHARED


def test_the_explorer_has_them_at_each_moment(trace):
    report = trace.report()
    data = explorer_data(report)
    columns = dict(
        zip([one["key"] for one in data["parts"]], data["moments"]["parts"], strict=True)
    )
    events = np.cumsum(data["moments"]["event"])
    peak, end = np.searchsorted(events, (report.peak.at.event, report.events))
    for at, ledger in ((peak, report.ledger_at_peak), (end, report.ledger_at_end)):
        told = {key: np.cumsum(column)[at] for key, column in columns.items()}
        assert MachineParts.of([told[key] for key in PARTS]) == ledger.machine
    few = thinned(report, 2)
    assert len(few.timeline.parts) == len(few.timeline.event) < len(report.timeline.event)


def test_a_saved_recording_has_them(trace, tmp_path):
    again = nbmem.open(trace.save(tmp_path / "host")).report()
    assert again.ledger_at_end == trace.report().ledger_at_end


def test_a_card_has_none():
    from nbmem import virtual

    with virtual.activated("T4"), nbmem.trace("card", namespace={}) as t:
        torch.ones(1 << 20, device="cuda")
    assert t.report().ledger_at_end.machine is None


def test_what_the_kernel_does_not_say_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(hosts, "_STATUS", tmp_path / "none")
    read = Host().read(None, 0, whole=True)
    assert (read.files, read.shared, own_bytes()) == (None, None, None)
    for rows in ("RssAnon:\t1 kB\nRssFile:\t12 kB\nRssShmem:\n", "\nRssFile:\t12 kB\n", "Rss"):
        (tmp_path / "none").write_text(rows)
        assert resident_parts() is None
    (tmp_path / "none").write_text(
        "Name:\t\xff\n\nRssAnon:\t1 kB\nRssFile:\t12 kB\nRssShmem:\t3 kB\n"
    )
    assert resident_parts() == (1 << 10, 12 << 10, 3 << 10)
    assert own_bytes() == 4 << 10
    read = Host().read(None, 0, whole=True)
    assert (read.files, read.shared) == (12 << 10, 3 << 10)


def test_in_a_container_its_own_page_cache_is_meant(monkeypatch, tmp_path):
    monkeypatch.setattr("nbmem.capture.devices.host._CGROUP", tmp_path)
    for name, text in (
        ("memory.max", "512000000"),
        ("memory.current", "400000000"),
        ("memory.stat", "anon 1\ninactive_file 100000000\n"),
    ):
        (tmp_path / name).write_text(text)
    read = Host().read(None, 0, whole=True)
    assert read.cache == 100_000_000
    assert read.used >= 300_000_000


def test_latest_readings_stand_and_unknown_stays_unknown():
    readings = MachineReadings.from_rows([(10, 0, -1, 5, -1), (20, 9, 7, 100, -1)])
    held = np.zeros((2, 22), np.int64)
    held[:, 0], held[:, 18] = 8, 12  # weights, and Python
    table = parts_at(readings, np.array([5, 30]), held)
    assert table.tolist() == [[0, -1, 5, -1], [8, 7, 13, -1]]
    assert MachineParts.of(table[0].tolist()) == MachineParts(
        tensors=0, files=None, shared=5, cache=None
    )
