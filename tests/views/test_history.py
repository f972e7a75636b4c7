"""The history: one line for each cell, in text and in HTML."""

from dataclasses import replace

from nbmem.core.session.cell_delta import CellDelta, CellPeak
from nbmem.core.units import MIB
from nbmem.views.history import render_history, render_history_html

FIRST = CellDelta(
    label="model = resnet50().cuda()",
    execution_count=2,
    allocated_before=0,
    allocated_after=98 * MIB,
    reserved_before=0,
    reserved_after=118 * MIB,
    peak=None,
    process=761 * MIB,
    duration_ns=420_000_000,
    error=None,
)
SECOND = CellDelta(
    label="train(model, epochs=3, loader=loader, opt=opt)",
    execution_count=3,
    allocated_before=98 * MIB,
    allocated_after=60 * MIB,
    reserved_before=118 * MIB,
    reserved_after=118 * MIB,
    peak=CellPeak(device=0, allocated=1100 * MIB, exact=True),
    process=None,
    duration_ns=2_500_000_000,
    error="OutOfMemoryError",
)
TABLE = """\
cell  allocated       now    reserved      peak    process      time
 [2]  model = resnet50().cuda()
      +98.0 MiB  98.0 MiB  +118.0 MiB         -  761.0 MiB  420.0 ms
 [3]  train(model, epochs=3, loader=loader, opt=opt)
      -38.0 MiB  60.0 MiB         0 B  1.07 GiB          -    2.50 s
      OutOfMemoryError
"""
SHORT = """\
cell                allocated  now  reserved  peak  process      time
 [1]  import torch        0 B  0 B       0 B     -        -  420.0 ms
"""


def test_the_table_to_the_letter():
    assert render_history([FIRST, SECOND]) + "\n" == TABLE


def test_a_row_that_fits_is_one_line():
    row = replace(FIRST, label="import torch", execution_count=1, allocated_after=0)
    row = replace(row, reserved_after=0, process=None)
    assert render_history([row]) + "\n" == SHORT


def test_no_line_is_longer_than_a_terminal_and_no_word_is_cut_there():
    row = replace(SECOND, label="x" * 300, error="E" * 200, allocated_before=-(99 << 40))
    assert max(map(len, render_history([FIRST, row]).splitlines())) <= 80


def test_deltas_are_what_a_cell_left():
    assert SECOND.allocated_delta == -38 * MIB
    assert FIRST.reserved_delta == 118 * MIB


def test_no_cells_is_a_sentence():
    assert render_history([]) == "No cell has used a card since nbmem was loaded."
    assert "No cell has used a card" in render_history_html([])


def test_html_escapes_what_the_user_wrote():
    bad = replace(FIRST, label="x = '<script>alert(1)</script>'", error="E<b>\n")
    html = render_history_html([bad])
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;" in html


def test_html_has_a_caption_and_scopes():
    html = render_history_html([FIRST, SECOND])
    assert "<caption" in html
    assert html.count('scope="row"') == 2
    assert "1.07 GiB" in html
