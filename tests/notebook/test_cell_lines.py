"""Bytes by line in a traced cell, with its own line numbers."""

import pytest

torch = pytest.importorskip("torch", reason="without torch nothing is allocated")

import nbmem
from nbmem.core.units import MIB
from tests.ipython_shell import shell_on_virtual_card


@pytest.fixture
def traced(monkeypatch, tmp_path):
    """Run cells; return the bytes of the last one's lines, from its file."""
    with shell_on_virtual_card(monkeypatch) as shell:

        def traced(*cells):
            for cell in cells:
                shell.run_cell(cell, store_history=True)
            shell.run_cell(f"%nbmem save {tmp_path / 'cell.nbmem'}")
            report = nbmem.open(tmp_path / "cell.nbmem").report()
            lines = report.lines
            rows = (*lines.rows, *lines.elsewhere)
            assert sum(row.peak for row in rows) == report.peak.allocated
            assert sum(row.kept for row in rows) == report.ledger_at_end.allocated
            return lines, [(row.number, row.text, row.peak, row.kept, row.taken) for row in rows]

        yield traced


HELPER = "def take(n):\n    return torch.ones(n * 262144, device='cuda')"
LOOP = """
%%memtrace --stacks

kept = []
for _ in range(3):
    kept.append(take(2))
    gone = take(4) * 1
del gone
"""


def test_a_cells_lines_are_those_that_python_ran(traced):
    lines, rows = traced(HELPER, LOOP)
    assert lines.file == "In [3]"
    # IPython has taken the empty line above away, and the magic's line is blank.
    assert lines.code[3:5] == ((4, "for _ in range(3):"), (5, "    kept.append(take(2))"))
    assert rows == [
        (5, "kept.append(take(2))", 6 * MIB, 6 * MIB, 6 * MIB),
        (6, "gone = take(4) * 1", 12 * MIB, 0, 24 * MIB),
    ]


BACKWARD = """%%memtrace --stacks
weight = torch.ones(1024, 1024, device="cuda", requires_grad=True)
(weight * 2).sum().backward()
"""


def test_a_backward_belongs_to_the_line_that_calls_it(traced):
    _, rows = traced(BACKWARD)
    assert [(number, kept) for number, _, _, kept, _ in rows] == [(2, 4 * MIB), (3, 4 * MIB)]


def test_a_cell_inside_a_cell_and_one_that_was_run_again(traced):
    lines, rows = traced(
        HELPER, "%%memtrace --stacks\n%%capture\nx = take(1)", "%%memtrace --stacks\ny = take(2)"
    )
    assert rows == [
        (2, "y = take(2)", 2 * MIB, 2 * MIB, 2 * MIB),
        (None, "there before it began", MIB, MIB, 0),
    ]
    assert lines.code == ((1, ""), (2, "y = take(2)"))
