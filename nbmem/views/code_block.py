"""Draw lines of a program to paste, or their difference, in HTML."""

from __future__ import annotations

from nbmem.views import style
from nbmem.views.markup import Markup, element

_CODE = (
    f"{style.MONOSPACE};margin:2px 0 8px 0;padding:4px 8px;white-space:pre;word-break:normal;"
    "overflow-x:auto;"
    "font-size:12px;line-height:1.4;border-left:3px solid rgba(128,128,128,0.35)"
)
_SIGNS = {
    "+": "background:rgba(46,160,67,0.22)",
    "-": "background:rgba(248,81,73,0.22)",
    "@": "opacity:0.6",
}
"""Style of a line of a diff, by its first character; for light and dark pages."""


def code_html(text: str) -> Markup:
    """Draw lines under each other; those of a difference are coloured."""
    shown = [
        line
        for text in text.splitlines()
        for line in (element("span", text, style=_SIGNS.get(text[:1])), element("br"))
    ][:-1]
    return element("pre", *shown, style=_CODE)
