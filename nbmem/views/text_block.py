"""The text's tables in HTML: lines of one width of letter, with the colours of the pictures.

Without <style>, which an untrusted notebook loses, every cell of a <table> carries its own: a
hundred bytes each, in every report that a notebook keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.views import style
from nbmem.views.markup import Markup, element, escape, join
from nbmem.views.palette import COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.core.session.categories import Category

_SQUARE = "\N{BLACK SQUARE}"


def block(lines: Sequence[str]) -> Markup:
    """Lines below each other; markup among them stays markup."""
    return element("pre", join([escape(line) for line in lines], "\n"), style=style.BLOCK)


def marked(category: Category | None, line: str) -> Markup:
    """A line whose first letter, a blank, is a square in the category's colour; none for None."""
    if category is None:
        return escape(line)
    square = element("span", _SQUARE, style=f"color:{COLOURS[category]}")
    return join([square, escape(line.removeprefix(" "))])
