"""Lay out an answer about a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.views import style
from nbmem.views.code_block import code_html
from nbmem.views.markup import element, wrapped
from nbmem.views.mime_bundle import WIDTH
from nbmem.views.notes_html import fold, listed

if TYPE_CHECKING:
    from nbmem.views.grid import Grid

_PROGRAM = "The program that was run"


def render_answer_text(sentences: Sequence[str], tables: Sequence[Grid], program: str = "") -> str:
    """Render an answer for a terminal; its first sentence is the verdict."""
    blocks = ["\n".join(wrapped(one, WIDTH) for one in sentences)]
    blocks += [table.text() for table in tables]
    return "\n\n".join([*blocks, *([f"{_PROGRAM}\n\n{program}"] if program else [])])


def render_answer_html(
    sentences: Sequence[str], chart: Grid, table: Grid, program: str = ""
) -> str:
    """Render an answer for a notebook's output."""
    verdict, *about = sentences
    return element(
        "div",
        element("div", verdict, style=style.VERDICT),
        listed(about),
        element(
            "div",
            element("div", chart.html(), style=style.CHARTS),
            element("div", table.html(), style=style.TABLES),
            style=style.COLUMNS,
        ),
        *([fold(_PROGRAM, code_html(program))] if program else []),
        style=style.BOX,
    )
