"""Build lists of sentences and folded sections in HTML."""

from __future__ import annotations

from collections.abc import Iterable

from nbmem.views import style
from nbmem.views.markup import Markup, element, with_code


def listed(lines: Iterable[str]) -> Markup:
    """Build a list of sentences or pieces of markup."""
    return element("ul", *(element("li", *with_code(line)) for line in lines), style=style.NOTES)


def fold(title: str, *inside: Markup) -> Markup:
    """Build a section that unfolds with a click on its title."""
    summary = element("summary", title, style=style.SUMMARY)
    return element("details", summary, *inside, style=style.DETAILS)
