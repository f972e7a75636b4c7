"""Explain an out-of-memory error as HTML, in the words of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views import oom, style
from nbmem.views.code_block import code_html
from nbmem.views.markup import Markup, element, join, with_code
from nbmem.views.notes_html import fold, listed
from nbmem.views.text_block import block, with_swatch

if TYPE_CHECKING:
    from nbmem.core.session.categories import Category
    from nbmem.report.model import Finding, OomReport

_BOX = (
    "border:1px solid #C8553D;border-left:5px solid #C8553D;border-radius:4px;"
    "font-size:13px;line-height:1.45;padding:8px 12px;margin:0 0 12px 0"
)
_TITLE = "font-size:15px;font-weight:600;margin:0 0 4px 0"
_LINE = "margin:0 0 8px 0;max-width:900px"
_SIDE_BY_SIDE = "display:flex;flex-wrap:wrap;gap:4px 36px;align-items:flex-start"
_REMEDIES = "margin:0 0 8px 0;padding:0 0 0 22px;max-width:900px"
_GROUND = "opacity:0.75"


def render_oom_html(ooms: Sequence[OomReport]) -> Markup:
    """Write the errors of a recording as a fragment of HTML."""
    main_error, *others = ooms
    parts = [
        element("div", *with_code(oom.title(main_error)), style=_TITLE),
        element("div", *with_code(main_error.reason), style=_LINE),
        *_remedies(main_error),
        element("div", *_tables(main_error), style=_SIDE_BY_SIDE),
    ]
    if after := oom.aftermath(main_error):
        parts.append(element("div", *with_code(after), style=f"{_LINE};font-weight:600"))
    parts += [element("div", *with_code(note), style=style.ABOUT) for note in main_error.notes]
    if others:
        also = "one more error was" if len(others) == 1 else f"{len(others)} more errors were"
        parts.append(fold(f"{also} caught", listed(oom.other_places(others))))
    return element("div", join(parts, "\n"), style=_BOX)


def _tables(oom_report: OomReport) -> list[Markup]:
    tables = []
    if rows := oom.figures(oom_report):
        tables.append(_table("At that moment", [(None, name, count) for name, count, _ in rows]))
    if held := oom.ledger(oom_report):
        tables.append(_table("The card", [*held]))
    if oom_report.holders:
        groups = [(one.category, oom.holder(one), one.requested) for one in oom_report.holders]
        tables.append(_table(oom.HOLDERS, groups))
    return tables


def _table(head: str, rows: Sequence[tuple[Category | None, str, int | None]]) -> Markup:
    width = max(len(format_bytes(count)) for _, _, count in rows)
    lines = [
        with_swatch(category, f"  {format_bytes(count):>{width}}  {name}")
        for category, name, count in rows
    ]
    caption = element("div", head, style=style.CAPTION)
    return element("div", caption, block(lines), style="max-width:100%")


def _remedies(oom_report: OomReport) -> list[Markup]:
    if not oom_report.remedies:
        return []
    return [
        element("div", oom.remedies_title(oom_report), style=style.CAPTION),
        element("ol", *(_remedy(one) for one in oom_report.remedies), style=_REMEDIES),
    ]


def _remedy(remedy: Finding) -> Markup:
    typed = oom.commands(remedy)
    return element(
        "li",
        element("b", *with_code(remedy.title)),
        element("span", *with_code(f" ({oom.ground(remedy)}). {remedy.evidence} "), style=_GROUND),
        *([code_html(typed)] if typed else []),
    )
