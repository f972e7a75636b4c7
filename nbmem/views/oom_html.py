"""An out-of-memory error explained, as HTML: the words are those of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.categories import PROCESS, Category
from nbmem.core.units import format_bytes
from nbmem.views import oom, style
from nbmem.views.markup import Markup, element
from nbmem.views.palette import swatch_style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.report import Autopsy, Finding

_BAR = 150
_BOX = (
    "border:1px solid #C8553D;border-left:5px solid #C8553D;border-radius:4px;"
    "padding:8px 12px;margin:0 0 12px 0"
)
_TITLE = "font-size:15px;font-weight:600;margin:0 0 4px 0"
_LINE = "margin:0 0 8px 0;max-width:900px"
_SIDE_BY_SIDE = "display:flex;flex-wrap:wrap;gap:4px 36px;align-items:flex-start"
_REMEDIES = "margin:0 0 8px 0;padding:0 0 0 22px;max-width:900px"
_CODE = (
    "font-family:monospace;font-size:12px;border:1px solid rgba(128,128,128,0.35);"
    "border-radius:3px;padding:1px 5px;white-space:pre-wrap"
)
_GROUND = "opacity:0.75"


def render_oom_html(ooms: Sequence[Autopsy]) -> Markup:
    """Write the errors of a recording as a fragment of HTML."""
    chief, *others = ooms
    parts = [
        element("div", oom.title(chief), style=_TITLE),
        element("div", chief.reason, style=_LINE),
        element("div", *_tables(chief), style=_SIDE_BY_SIDE),
        *_remedies(chief),
    ]
    if after := oom.aftermath(chief):
        parts.append(element("div", after, style=f"{_LINE};font-weight:600"))
    parts += [element("div", note, style=style.ABOUT) for note in chief.notes]
    if others:
        lines = [element("li", line) for line in oom.elsewhere(others)]
        parts.append(
            element(
                "details",
                element("summary", f"{len(others)} more were caught", style=style.SUMMARY),
                element("ul", *lines, style=style.NOTES),
            )
        )
    return element("div", *parts, style=_BOX)


def _tables(autopsy: Autopsy) -> list[Markup]:
    tables = []
    if rows := oom.figures(autopsy):
        body = [
            element(
                "tr",
                element("th", name, scope="row", style=style.NAME),
                element("td", format_bytes(count), title=f"{count:,} B", style=style.FIGURE),
                title=what,
            )
            for name, count, what in rows
        ]
        tables.append(_table("At that moment", body))
    if held := oom.ledger(autopsy):
        scale = max((count for category, count in held if category in PROCESS), default=1)
        tables.append(_table("The card", [_category(*row, scale) for row in held]))
    if autopsy.holders:
        largest = max(group.requested for group in autopsy.holders)
        body = [
            _bar_row(group.category, oom.holder(group), group.requested, largest)
            for group in autopsy.holders
        ]
        tables.append(_table(oom.HOLDERS, body))
    return tables


def _category(category: Category, count: int, scale: int) -> Markup:
    return _bar_row(category, category.label, count, scale if category in PROCESS else 0)


def _bar_row(category: Category | None, name: str, count: int, scale: int) -> Markup:
    width = max(1, round(_BAR * count / scale)) if scale else 0
    colour = swatch_style(Category.UNKNOWN if category is None else category)
    bar = f"{style.BAR}width:{width}px;{colour}"
    return element(
        "tr",
        element("td", format_bytes(count), title=f"{count:,} B", style=style.FIGURE),
        element(
            "th",
            *([] if category is None else [element("span", style=style.SWATCH + colour)]),
            name,
            scope="row",
            style=style.TEXT,
        ),
        element("td", *([element("span", style=bar)] if width else []), style=style.BAR_CELL),
    )


def _table(caption: str, body: list[Markup]) -> Markup:
    return element(
        "table",
        element("caption", caption, style=style.CAPTION),
        element("tbody", *body),
        style=style.TABLE,
    )


def _remedies(autopsy: Autopsy) -> list[Markup]:
    if not autopsy.remedies:
        return []
    return [
        element("div", "Would have sufficed", style=style.CAPTION),
        element("ol", *(_remedy(one) for one in autopsy.remedies), style=_REMEDIES),
    ]


def _remedy(remedy: Finding) -> Markup:
    typed = oom.commands(remedy)
    return element(
        "li",
        element("b", remedy.title),
        element("span", f" ({oom.ground(remedy)}). {remedy.evidence} ", style=_GROUND),
        *([element("span", typed, style=_CODE)] if typed else []),
    )
