"""Cells without a card: growth of the process and of tensors."""

from collections import deque
from mmap import mmap
from types import SimpleNamespace

import torch

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.capture.devices.host import FRESH_NS
from nbmem.capture.record.cell_deltas import DeltaReader
from nbmem.core.session.cell_delta import HostDelta
from nbmem.views.mime_bundle import history_bundle

MIB = 1 << 20


def host_rows(reader, trace=None):
    rows = deque(maxlen=10)
    reader.keep_of_host(rows, trace)
    return list(rows)


def test_the_process_grows_by_what_a_cell_touches(monkeypatch):
    monkeypatch.setattr("nbmem.capture.devices.host.FRESH_NS", -FRESH_NS)
    reader = DeltaReader()
    reader.before()
    ballast = mmap(-1, 64 * MIB)
    ballast.write(b"1" * len(ballast))
    assert reader.after("x = 1", None, 3) is None
    (row,) = host_rows(reader)
    assert 32 * MIB < row.process_delta < 256 * MIB
    assert (row.label, row.execution_count, row.tensors) == ("x = 1", 3, None)
    assert host_rows(reader) == []  # it is said once
    ballast.close()


def test_what_a_traced_cell_left_in_tensors_to_the_byte():
    reader, names = DeltaReader(), {}
    reader.before()
    with nbmem.trace("cell", namespace=names) as t:
        names["net"] = net = torch.nn.Linear(512, 512)
        net(torch.ones(8, 512))
    reader.after("cell", None, 1)
    (row,) = host_rows(reader, t)
    assert row.tensors == 4 * (512 * 512 + 512)


def test_a_trace_without_a_report_leaves_the_figure_unknown():
    reader = DeltaReader()
    reader.before_torch(0)
    reader.after("import torch", "ImportError", 1)

    def report():
        raise RuntimeError("nothing was recorded")

    (row,) = host_rows(reader, SimpleNamespace(report=report))
    assert (row.tensors, row.process_before, row.process_delta) == (None, None, None)


def test_a_cell_that_used_a_card_has_its_line_there_alone():
    with virtual.activated("T4"):
        reader = DeltaReader()
        reader.before()
        x = torch.ones(MIB, device="cuda")
        assert reader.after("x", None, 1).allocated_delta == x.nbytes
        assert host_rows(reader) == []


def test_the_table_of_the_host_stands_where_no_card_was_used():
    rows = [
        HostDelta(
            label="net = <b>",
            execution_count=7,
            tensors=tensors,
            process_before=before,
            process_after=300 * MIB,
            duration_ns=10**6,
            error="ValueError",
        )
        for tensors, before in ((None, None), (8 * MIB, 200 * MIB))
    ]
    bundle = history_bundle((), rows)
    text, page = bundle["text/plain"], bundle["text/html"]
    unknown, known = text.splitlines()[1:3]
    assert unknown.split()[-7:-5] == ["-", "-"]
    assert "+8.0 MiB  +100.0 MiB  300.0 MiB" in known
    assert "No cell has used a card" in text
    assert "&lt;b&gt;" in page
    assert "No cell has used a card since" in history_bundle(())["text/plain"]
