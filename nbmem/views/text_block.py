"""Draw text tables in HTML: monospaced lines with the charts' colours.

Untrusted notebooks lose <style>, so every cell of a <table> would need its own style: a hundred
bytes each, in every saved report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.views import style
from nbmem.views.markup import Markup, element, escape, join
from nbmem.views.palette import COLOURS

if TYPE_CHECKING:
    from nbmem.core.session.categories import Category

_SQUARE = "\N{BLACK SQUARE}"


def block(lines: Sequence[str]) -> Markup:
    """Put lines below each other; markup among them stays markup."""
    return element("pre", join([escape(line) for line in lines], "\n"), style=style.BLOCK)


def with_swatch(category: Category | None, line: str) -> Markup:
    """Replace a line's leading blank by a square in a category's colour.

    For None the line stays as it is.
    """
    if category is None:
        return escape(line)
    square = element("span", _SQUARE, style=f"color:{COLOURS[category]}")
    return join([square, escape(line.removeprefix(" "))])
