"""Both readings of one report; the front end picks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.views.html import render_html
from nbmem.views.text import render_text

if TYPE_CHECKING:
    from nbmem.report import Report


def mimebundle(report: Report) -> dict[str, str]:
    """What a notebook's output holds.

    Plain text is not a fallback: it is what terminals, diffs and CI see.
    """
    return {"text/plain": render_text(report), "text/html": render_html(report)}
