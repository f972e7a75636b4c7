"""Render plain tables as text and as HTML, from the same cells."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from nbmem.views import style
from nbmem.views.markup import Markup, element, escape, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """A cell of a table.

    Attributes:
        text: Its text.
        exact: Its tooltip, in HTML.
        share: Filled share of its width, in HTML; 0 for none.
        strong: Whether it is emphasized, in HTML.
        note: Small text below it, in HTML.
    """

    text: str
    exact: str | None = None
    share: float = 0.0
    strong: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table that can be written as text and as HTML.

    Attributes:
        title: Its caption.
        head: Names of the columns.
        rows: Cells, as many as names in each row.
        left: Numbers of the columns that hold text and not figures.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    left: frozenset[int] = frozenset({0})

    def text(self) -> str:
        """Render the table for a terminal."""
        texts = [self.head, *([cell.text for cell in row] for row in self.rows)]
        table = in_columns([line for row in texts for line in _lines(row)], self.left)
        return "\n".join([*([self.title] if self.title else []), table])

    def html(self) -> Markup:
        """Render the table for a notebook's output.

        It scrolls separately if it is too wide.
        """
        head = element(
            "tr",
            *(
                element("th", *_broken(name), scope="col", style=self._style(i, style.HEAD))
                for i, name in enumerate(self.head)
            ),
        )
        body = [element("tr", *(self._cell(i, c) for i, c in enumerate(row))) for row in self.rows]
        broken = style.CAPTION.replace("nowrap", "normal")  # or a long title would widen the table
        caption = [element("caption", self.title, style=broken)] if self.title else []
        table = element(
            "table",
            *caption,
            element("thead", head),
            element("tbody", *body),
            style=style.TABLE,
        )
        return element("div", table, style=style.SCROLL)

    def _style(self, column: int, figure: str) -> str:
        if column not in self.left:
            return figure
        return figure.replace("text-align:right", "text-align:left")

    def _cell(self, column: int, cell: TableCell) -> Markup:
        figure = style.STRONG_FIGURE if cell.strong else style.FIGURE
        look = self._style(column, figure)
        if column in self.left:
            look = look.replace("white-space:nowrap", "white-space:pre-wrap")
        if cell.share:
            look += style.filled(cell.share)
        note = [element("div", cell.note, style=style.SMALL)] if cell.note else []
        return element("td", cell.text, *note, title=cell.exact, style=look)


def _broken(name: str) -> list[Markup]:
    """Return a column's name as markup, with its line breaks."""
    first, *rest = name.split("\n")
    return [escape(first), *(m for line in rest for m in (element("br"), escape(line)))]


def in_columns(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> str:
    """Align rows of texts in columns.

    Args:
        rows: As many texts in each.
        left: Numbers of the columns that are flush left; figures are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _lines(row: Sequence[str]) -> list[list[str]]:
    """Split a row into text lines, with the last ones on the figures' line.

    A text of two lines begins in the line above the row's figures.
    """
    parts = [[one_line(line) for line in text.split("\n")] for text in row]
    height = max(map(len, parts))
    filled = [[""] * (height - len(lines)) + lines for lines in parts]
    return [list(line) for line in zip(*filled, strict=True)]


def cells(*texts: str, strong: bool = False) -> tuple[TableCell, ...]:
    """Make a row of plain cells from texts."""
    return tuple(TableCell(text=text, strong=strong) for text in texts)
