"""Render the code lines that took the most memory, as a text table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.report.exploration import LineRow
from nbmem.views.markup import clipped, one_line

if TYPE_CHECKING:
    from nbmem.report.model import Report

MAX_LINES = 8
"""Lines in the table, the largest at the peak or at the end; the others are one row."""
_WIDEST = 80
_HEADS = ("at the peak", "at the end", "taken in all")


def lines_table(report: Report) -> str:
    """Render each line's memory in code order, with the sums.

    Empty if no stacks were recorded.
    """
    found = report.lines
    if found is None:
        return ""
    largest = sorted(found.rows, key=lambda row: -max(row.peak, row.kept))[:MAX_LINES]
    shown = [row for row in found.rows if row in largest]
    left = [row for row in found.rows if row not in largest]
    if left:
        what = "another line" if len(left) == 1 else f"{len(left)} other lines"
        shown.append(_sum(what, left))
    shown += found.elsewhere
    shown.append(_sum("allocated", [*found.rows, *found.elsewhere]))
    number = max(len(str(row.number)) for row in found.rows)
    figures = [[format_bytes(n) for n in (row.peak, row.kept, row.taken)] for row in shown]
    widths = [max(map(len, column)) for column in zip(_HEADS, *figures, strict=True)]
    room = _WIDEST - sum(widths) - 2 * len(widths)
    lines = [_line(f"Lines of {one_line(found.file)}", _HEADS, widths, room)]
    for row, texts in zip(shown, figures, strict=True):
        name = f"  {row.number or '':>{number}}  {one_line(row.text)}"
        name = f"= {row.text}" if row is shown[-1] else name
        lines.append(_line(name, texts, widths, room))
    return "\n".join(lines)


def _sum(text: str, rows: Sequence[LineRow]) -> LineRow:
    peak, kept, taken = (sum(column) for column in zip(*(_of(row) for row in rows), strict=True))
    return LineRow(None, text, peak, kept, taken)


def _of(row: LineRow) -> tuple[int, int, int]:
    return row.peak, row.kept, row.taken


def _line(name: str, figures: Sequence[str], widths: Sequence[int], room: int) -> str:
    cells = [f"{text:>{width}}" for text, width in zip(figures, widths, strict=True)]
    return "  ".join((f"{clipped(name, room):<{room}}", *cells))
