"""Render one line for each cell: its memory, its peak, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes, format_ms, format_peak
from nbmem.views import style
from nbmem.views.grid import in_columns
from nbmem.views.markup import Markup, clipped, element, one_line

if TYPE_CHECKING:
    from nbmem.core.session.cell_delta import CellDelta, HostDelta

_HEAD = ("cell", "", "allocated", "now", "reserved", "peak", "process", "time", "")
_HOST_HEAD = ("cell", "", "tensors", "process", "now", "time", "")
_ON_HOST = (
    "No cell has used a card: process is this process's resident memory, tensors what a traced "
    "cell left."
)
_EMPTY = "No cell has used a card since nbmem was loaded."
_LABEL = 32
WIDTH = 80
"""Width of a terminal, in characters: in a longer row, the label has a separate line."""


def render_history(rows: Sequence[CellDelta]) -> str:
    """Write the cells as a table, oldest first.

    `-` stands for what was not measured.
    """
    if not rows:
        return _EMPTY
    table = [_HEAD, *(_cells(row) for row in rows)]
    lines = in_columns(table, left={1, len(_HEAD) - 1}).splitlines()
    if max(map(len, lines)) <= WIDTH:
        return "\n".join(lines)
    head, *figures = in_columns(
        [(cell, *cells) for cell, _, *cells, _ in table], left=set()
    ).splitlines()
    indent = max(len(cells[0]) for cells in table) + 2
    written = [head]
    for row, (cell, _, *_, error), line in zip(rows, table[1:], figures, strict=True):
        label = clipped(one_line(row.label), WIDTH - indent)
        written += [f"{cell:>{indent - 2}}  {label}".rstrip(), f"{'':<{indent}}{line[indent:]}"]
        written += [f"{'':<{indent}}{clipped(error, WIDTH - indent)}"] if error else []
    return "\n".join(written)


def render_history_html(rows: Sequence[CellDelta]) -> str:
    """Draw the table of the cells for a notebook's output."""
    if not rows:
        return element("div", _EMPTY)
    head = element("tr", *(element("th", name, scope="col", style=style.HEAD) for name in _HEAD))
    body = [_html_row(row.label, _cells(row)) for row in rows]
    return element(
        "div",
        element(
            "table",
            element("caption", "Cells and what they left on the card", style=style.CAPTION),
            element("thead", head),
            element("tbody", *body),
            style=style.TABLE,
        ),
        style=style.BOX,
    )


def render_host_history(rows: Sequence[HostDelta]) -> str:
    """Write the cells by their change of host memory, oldest first."""
    lines = in_columns(
        [_HOST_HEAD, *map(_host_cells, rows)], left={1, len(_HOST_HEAD) - 1}
    ).splitlines()
    return "\n".join([*lines, _ON_HOST])


def render_host_history_html(rows: Sequence[HostDelta]) -> str:
    """Draw the host memory table for a notebook's output."""
    heads = (element("th", name, scope="col", style=style.HEAD) for name in _HOST_HEAD)
    body = [_html_row(row.label, _host_cells(row)) for row in rows]
    table = element(
        "table",
        element("caption", _ON_HOST, style=style.CAPTION),
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        style=style.TABLE,
    )
    return element("div", table, style=style.BOX)


def _host_cells(row: HostDelta) -> tuple[str, ...]:
    tensors, delta = row.tensors, row.process_delta
    return (
        "" if row.execution_count is None else f"[{row.execution_count}]",
        clipped(one_line(row.label), _LABEL),
        "-" if tensors is None else format_bytes(tensors, signed=True),
        "-" if delta is None else format_bytes(delta, signed=True),
        format_bytes(row.process_after),
        format_ms(row.duration_ns),
        one_line(row.error or ""),
    )


def _html_row(text: str, cells: tuple[str, ...]) -> Markup:
    number, label, *figures, error = cells
    return element(
        "tr",
        element("th", number, scope="row", style=style.FIGURE),
        element("td", label, title=one_line(text), style=style.TEXT),
        *(element("td", figure, style=style.FIGURE) for figure in figures),
        element("td", error, style=style.ERROR_TEXT if error else style.TEXT),
    )


def _cells(row: CellDelta) -> tuple[str, ...]:
    return (
        "" if row.execution_count is None else f"[{row.execution_count}]",
        clipped(one_line(row.label), _LABEL),
        format_bytes(row.allocated_delta, signed=True),
        format_bytes(row.allocated_after),
        format_bytes(row.reserved_delta, signed=True),
        "-" if row.peak is None else format_peak(row.peak.allocated, exact=row.peak.exact),
        "-" if row.process is None else format_bytes(row.process),
        format_ms(row.duration_ns),
        one_line(row.error or ""),
    )
