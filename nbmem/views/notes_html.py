"""What stands under a table, in HTML: sentences in a list, and what is folded under a title."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.views import style
from nbmem.views.markup import Markup, element

if TYPE_CHECKING:
    from collections.abc import Iterable


def listed(lines: Iterable[str]) -> Markup:
    """Sentences, or pieces of markup, one under the other."""
    return element("ul", *(element("li", line) for line in lines), style=style.NOTES)


def fold(title: str, *inside: Markup) -> Markup:
    """What a click on its title shows."""
    summary = element("summary", title, style=style.SUMMARY)
    return element("details", summary, *inside, style=style.DETAILS)
