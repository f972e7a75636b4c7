"""Render tips as HTML: a list that needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.views import style
from nbmem.views.markup import Markup, element, join, with_code
from nbmem.views.tips import MAX_TIPS, about, command, heading

if TYPE_CHECKING:
    from nbmem.report.model import Finding

_LIST = "margin:4px 0 8px 0;padding-left:18px"
_ITEM = "margin:0 0 8px 0"
_TITLE = "font-weight:600"
_CODE = (
    f"{style.MONOSPACE};margin:2px 0 0 0;padding:4px 8px;white-space:pre-wrap;line-height:1.35;"
    "font-size:12px;"
    "border-left:3px solid rgba(127,127,127,0.45);background:rgba(127,127,127,0.10)"
)


def render_tips_html(findings: Sequence[Finding], *, most: int | None = MAX_TIPS) -> Markup:
    """Write findings as a fragment; empty if there are none."""
    if not findings:
        return Markup("")
    shown = findings[:most]
    return element(
        "div",
        element(
            "div",
            heading(len(findings), len(shown)),
            style=style.SUMMARY.replace("cursor:pointer;", ""),
        ),
        element("ul", *(_item(finding) for finding in shown), style=_LIST),
    )


def _item(finding: Finding) -> Markup:
    typed = command(finding)
    return element(
        "li",
        element("div", *with_code(finding.title), style=_TITLE),
        element("div", *with_code(finding.evidence)),
        element("div", about(finding), style=style.ABOUT),
        *([_code(finding.code)] if finding.code else []),
        *([element("div", "or let nbmem do it: ", element("code", typed))] if typed else []),
        style=_ITEM,
    )


def _code(text: str) -> Markup:
    lines = [element("span", line or " ") for line in text.splitlines()]
    return element("pre", join(lines, "\n"), style=_CODE)
