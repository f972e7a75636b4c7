"""Render a model layer by layer, as text and HTML."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.grid import Grid, TableCell
from nbmem.views.markup import element
from nbmem.views.notes_html import listed
from nbmem.views.repeated_layers import AMOUNTS, folded

if TYPE_CHECKING:
    from nbmem.report.estimate_results import LayerRow, Layers

COLUMNS = AMOUNTS
"""Figures to sort by and to add up."""
_HEADS = {
    "optimizer": "optimizer\nstate",
    "saved": "saved for\nbackward",
    "forward_flops": "FLOPs\nforward",
    "backward_flops": "FLOPs\nbackward",
}
_FIRST_OUT = (
    "buffers", "gradients", "optimizer", "parameters", "backward_flops", "forward_flops", "output",
)  # fmt: skip
"""Columns that a narrow terminal leaves out, the least important first."""
_MAX_ROWS = 60
"""Rows of the text; the HTML has all."""
WIDTH = 80
"""Characters of a line if the terminal's width is unknown."""
_LONGEST = 36
"""Characters of a name in a narrow text: its end has more information than its beginning."""


def sort(layers: Layers, column: str) -> Layers:
    """Sort the rows by one of their figures, the largest first.

    `name` means the model's own order.

    Raises:
        UsageError: There is no such figure.
    """
    if column == "name":
        return layers
    if column not in COLUMNS:
        raise UsageError(f"--sort {column} is no column; there are name, {', '.join(COLUMNS)}.")
    rows = sorted(layers.rows, key=lambda row: -(getattr(row, column) or 0))
    return dataclasses.replace(layers, rows=tuple(rows))


def render_text(layers: Layers, width: int | None = None) -> str:
    """Render the layers for a terminal.

    Equal layers of consecutive blocks are one row.

    Args:
        layers: The result to render.
        width: Characters of a line; columns that exceed it are left out. None for no limit.
    """
    layers = _folded(layers)
    left_out: list[str] = []
    table = _grid(layers, _MAX_ROWS).text()
    for name in _FIRST_OUT:
        if width is None or max(map(len, table.splitlines())) <= width:
            break
        left_out.append(name)
        table = _grid(layers, _MAX_ROWS, left_out).text()
    if width is not None and max(map(len, table.splitlines())) > width:
        table = _grid(_narrow(layers), _MAX_ROWS, left_out).text()
    shown = [name for name in left_out if _sum(layers, name)]
    totals = ", ".join(f"{_head(n)} {_amount(n, _sum(layers, n))}" for n in shown)
    notes = [f"Left out for want of width:\n  {totals}"] if totals else []
    left = len(layers.rows) - _MAX_ROWS
    if left > 0:
        notes.append(f"{left} more layers: sort them (--sort saved), or read the HTML.")
    head = f"{layers.title}, {_about(layers)}"
    return "\n".join([head, "", table, "", *notes, *layers.sentences]).rstrip()


def _folded(layers: Layers) -> Layers:
    return dataclasses.replace(layers, rows=tuple(folded(layers.rows)))


def _narrow(layers: Layers) -> Layers:
    """Remove formulas, and keep only the ends of long names."""
    rows = [
        dataclasses.replace(
            row,
            name=row.name if len(row.name) <= _LONGEST else f"...{row.name[3 - _LONGEST :]}",
            formula="",
        )
        for row in layers.rows
    ]
    return dataclasses.replace(layers, rows=tuple(rows))


def render_html(layers: Layers) -> str:
    """Render the layers for a notebook's output."""
    layers = _folded(layers)
    return element(
        "div",
        element("div", layers.title, style=style.VERDICT),
        element("div", _about(layers), style=style.ABOUT),
        _grid(layers, len(layers.rows)).html(),
        listed(layers.sentences),
        style=style.BOX,
    )


def _about(layers: Layers) -> str:
    given = "without an input" if layers.shape is None else f"for an input of {layers.shape}"
    return f"{given}; optimizer state {layers.optimizer}"


def _grid(layers: Layers, most: int, left_out: Sequence[str] = ()) -> Grid:
    shown = [name for name in COLUMNS if _sum(layers, name) and name not in left_out]
    largest = {n: max(getattr(row, n) or 0 for row in layers.rows) for n in shown}
    rows = [_row(row, shown, largest) for row in layers.rows[:most]]
    total = [TableCell(text="= all", strong=True), TableCell(text="")]
    for name in shown:
        count = _sum(layers, name)
        total.append(TableCell(text=_amount(name, count), exact=f"{count:,}", strong=True))
    return Grid(
        title="",
        head=("layer", "parameters by formula", *(_HEADS.get(n, n) for n in shown)),
        rows=(*rows, tuple(total)),
        left=frozenset({0, 1}),
    )


def _head(column: str) -> str:
    return _HEADS.get(column, column).replace("\n", " ")


def _sum(layers: Layers, column: str) -> int:
    return sum(getattr(row, column) or 0 for row in layers.rows)


def _row(row: LayerRow, shown: list[str], largest: dict[str, int]) -> tuple[TableCell, ...]:
    found = [TableCell(text=row.name), TableCell(text=f"{row.kind} {row.formula}".rstrip())]
    for name in shown:
        count = getattr(row, name)
        text = "" if not count else _amount(name, count)
        share = (count or 0) / max(largest[name], 1)
        found.append(TableCell(text=text, exact=f"{count or 0:,}", share=share))
    return tuple(found)


def _amount(column: str, count: int) -> str:
    if column == "parameters":
        return f"{count:,}"
    if column.endswith("flops"):
        for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if count >= size:
                return f"{count / size:,.1f} {unit}"
        return f"{count:,}"
    return format_bytes(count)
