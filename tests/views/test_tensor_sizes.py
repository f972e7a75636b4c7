"""A tensor has its requested size in every view."""

import csv

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.api.live_tensors import live_now
from nbmem.core.session.categories import Category
from nbmem.core.units import MIB
from nbmem.views.exports.report import report_json
from nbmem.views.html import render_html
from nbmem.views.live_tensors import render_top, render_top_html
from nbmem.views.oom import render_oom
from nbmem.views.text import render_text

SIZE, BLOCK = 125 * MIB, 126 * MIB
"""A segment has whole 2 MiB, and the one that would be left of it is too small for a block."""


@pytest.fixture
def names():
    with virtual.activated("T4"):
        yield {}


def traced(names, more=0):
    with nbmem.trace("cell", namespace=names) as trace:
        names["x"] = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
        if more:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(more, dtype=torch.uint8, device="cuda")
    return trace


def test_every_view_of_a_report_says_what_was_asked_for(names, tmp_path):
    trace = traced(names)
    report = trace.report()
    assert torch.cuda.memory_allocated() == report.peak.allocated == BLOCK
    assert report.ledger_at_peak[Category.USER_TENSORS] == SIZE
    assert report.ledger_at_peak[Category.ROUNDING] == BLOCK - SIZE
    (held,) = report.holdings
    assert (held.requested, held.block) == (SIZE, BLOCK)
    (life,) = report.details.lives
    assert life.requested == SIZE
    text = render_text(report)
    assert "  125.0 MiB  user tensors  x (131072000,) uint8" in text
    assert "Largest holdings at the peak: 125.0 MiB requested, 99% of allocated" in text
    assert "125.0 MiB  user tensors" in render_html(report)
    with trace.export("csv", tmp_path / "x.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (int(row["bytes"]), int(row["block"])) == (SIZE, BLOCK)


def test_what_lives_now_has_the_same_size(names):
    traced(names)
    rows = live_now(names)[0]
    text = render_top(rows, 10, "Card 0")
    assert text.startswith("Card 0: 125.0 MiB requested of 126.0 MiB allocated now\n  125.0 MiB  ")
    assert ">125.0 MiB</td>" in render_top_html(rows, 10, "Card 0")


def test_an_error_names_its_holders_by_the_same_size(names):
    report = traced(names, more=1 << 40).report()
    (held,) = report.ooms[0].holders
    assert held.requested == SIZE
    assert "Largest holders, by requested bytes\n  125.0 MiB  user tensors: x" in render_oom(
        report.ooms
    )
    assert report_json(report)["out_of_memory"][0]["holders"][0]["bytes"] == SIZE
