"""A model layer by layer: text, HTML, JSON and rows for a data frame."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.grid import Cell, Grid
from nbmem.views.html import page
from nbmem.views.markup import element

if TYPE_CHECKING:
    from nbmem.answers import LayerRow, Layers

COLUMNS = (
    "parameters", "weights", "buffers", "gradients", "optimizer", "saved", "output",
    "forward_flops", "backward_flops",
)  # fmt: skip
"""What can be sorted by, and what is added up."""
_HEADS = {
    "optimizer": "optimizer state",
    "saved": "saved for backward",
    "forward_flops": "FLOPs forward",
    "backward_flops": "backward",
}
_MOST = 60
"""Rows of the text; the HTML has all."""


def sort(layers: Layers, column: str) -> Layers:
    """The rows by one of their figures, largest first; `name` for the model's own order.

    Raises:
        UsageError: There is no such figure.
    """
    if column == "name":
        return layers
    if column not in COLUMNS:
        raise UsageError(f"--sort {column} is no column; there are name, {', '.join(COLUMNS)}.")
    rows = sorted(layers.rows, key=lambda row: -(getattr(row, column) or 0))
    return dataclasses.replace(layers, rows=tuple(rows))


def render_text(layers: Layers) -> str:
    """For a terminal."""
    grid = _grid(layers, most=_MOST)
    left = len(layers.rows) - _MOST
    more = [f"{left} more layers: sort them (--sort saved), or read the HTML."] if left > 0 else []
    head = f"{layers.title}, {_about(layers)}"
    return "\n".join([head, "", grid.text(), *more, *layers.sentences])


def render_html(layers: Layers) -> str:
    """For a notebook's output."""
    return element(
        "div",
        element("div", layers.title, style=style.VERDICT),
        element("div", _about(layers), style=style.ABOUT),
        _grid(layers, most=len(layers.rows)).html(),
        element("ul", *(element("li", text) for text in layers.sentences), style=style.NOTES),
        style=style.BOX,
    )


def render_page(layers: Layers) -> str:
    """A whole document that needs nothing else."""
    return page(f"layers of {layers.title}", render_html(layers))


def mimebundle(layers: Layers) -> dict[str, str]:
    """What a notebook's output holds."""
    return {"text/plain": render_text(layers), "text/html": render_html(layers)}


def layers_json(layers: Layers) -> dict[str, Any]:
    """A documented, stable form: `title`, `optimizer`, `shape`, `sentences` and `rows`.

    Each row: {name, kind, formula, parameters, weights, buffers, gradients, optimizer, saved,
    output, forward_flops, backward_flops}; amounts are bytes, null without an input.
    """
    return dataclasses.asdict(layers)


def records(layers: Layers) -> list[dict[str, Any]]:
    """The rows for `pandas.DataFrame(...)`."""
    return [dataclasses.asdict(row) for row in layers.rows]


def _about(layers: Layers) -> str:
    given = "without an input" if layers.shape is None else f"for an input of {layers.shape}"
    return f"{given}; optimizer state {layers.optimizer}"


def _grid(layers: Layers, most: int) -> Grid:
    shown = [name for name in COLUMNS if any(getattr(row, name) for row in layers.rows)]
    largest = {n: max(getattr(row, n) or 0 for row in layers.rows) for n in shown}
    rows = [_row(row, shown, largest) for row in layers.rows[:most]]
    total = [Cell(text="= all", strong=True), Cell(text=""), Cell(text="")]
    for name in shown:
        count = sum(getattr(row, name) or 0 for row in layers.rows)
        total.append(Cell(text=_amount(name, count), exact=f"{count:,}", strong=True))
    return Grid(
        title="",
        head=("layer", "kind", "parameters by formula", *(_HEADS.get(n, n) for n in shown)),
        rows=(*rows, tuple(total)),
        left=frozenset({0, 1, 2}),
    )


def _row(row: LayerRow, shown: list[str], largest: dict[str, int]) -> tuple[Cell, ...]:
    found = [Cell(text=row.name), Cell(text=row.kind), Cell(text=row.formula)]
    for name in shown:
        count = getattr(row, name)
        text = "" if not count else _amount(name, count)
        share = (count or 0) / max(largest[name], 1)
        found.append(Cell(text=text, exact=f"{count or 0:,}", share=share))
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
