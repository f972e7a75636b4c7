"""Render the largest live storages with all their holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.markup import Markup, clipped, element, one_line, short_path
from nbmem.views.palette import swatch_style
from nbmem.views.rows import HoldingGroup, group_holdings

if TYPE_CHECKING:
    from nbmem.report.model import Holding

EMPTY = "Nothing lives on a card: torch has no memory allocated there."
UNNAMED = "no Python object (a workspace, or a library's)"
MAX_HOLDERS = 3
_WIDTH = 100


def render_top(holdings: Sequence[Holding], most: int, card: str) -> str:
    """Write the largest storages of one card.

    Args:
        holdings: All live storages, largest first.
        most: Number of lines; storages without distinguishing names share one.
        card: The card's label.
    """
    if not holdings:
        return EMPTY
    shown = group_holdings(holdings)[:most]
    size = max(len(row.size()) for row in shown)
    kind = max(len(row.held.category.label) for row in shown)
    lines = [_title(shown, holdings, card)]
    for row in shown:
        head = f"  {row.size():>{size}}  {row.held.category.label:<{kind}}  "
        lines.append(clipped(head + _what(row.held), _WIDTH))
        lines += [clipped(" " * len(head) + also, _WIDTH) for also in _also(row.held)]
    return "\n".join(lines)


def render_top_html(holdings: Sequence[Holding], most: int, card: str) -> str:
    """Draw the largest storages for a notebook's output."""
    if not holdings:
        return element("div", EMPTY)
    shown = group_holdings(holdings)[:most]
    lines = any(row.held.line for row in shown)
    names = ("category", "what", "shape and dtype", "also held by", *(["line"] if lines else []))
    head = element(
        "tr",
        element("th", "requested", scope="col", style=style.HEAD),
        *(element("th", name, scope="col", style=style.HEAD_TEXT) for name in names),
    )
    table = element(
        "table",
        element("caption", _title(shown, holdings, card), style=style.CAPTION),
        element("thead", head),
        element("tbody", *(_row(row, line=lines) for row in shown)),
        style=style.TABLE,
    )
    return element("div", table, style=style.BOX)


def _row(row: HoldingGroup, *, line: bool) -> Markup:
    held = row.held
    swatch = element("span", style=style.SWATCH + swatch_style(held.category))
    exact = f"{held.requested:,} B asked for, {held.block:,} B taken, each"
    kind = held.holders[0].kind.label if held.holders else None
    return element(
        "tr",
        element("td", row.size(), title=exact, style=style.FIGURE),
        element("td", swatch, held.category.label, style=style.NAME),
        element(
            "th", one_line(held.name or UNNAMED), scope="row", title=kind, style=style.BREAKING
        ),
        element("td", one_line(held.form or ""), style=style.NAME),
        element("td", "; ".join(_others(held)), style=style.BREAKING),
        *([element("td", held.line or "", style=style.TEXT)] if line else []),
    )


def _title(shown: Sequence[HoldingGroup], holdings: Sequence[Holding], card: str) -> str:
    part = sum(row.size_of_all for row in shown if row.held.block)  # the rest is not torch's
    whole = sum(held.block for held in holdings)
    return f"{card}: {format_bytes(part)} requested of {format_bytes(whole)} allocated now"


def _what(held: Holding) -> str:
    parts = (" ".join((short_path(held.name or UNNAMED), held.form or "")), held.line or "")
    return ", ".join(one_line(part.strip()) for part in parts if part.strip())


def _also(held: Holding) -> list[str]:
    others = _others(held)
    return [f"also held by {'; '.join(others)}"] if others else []


def _others(held: Holding) -> list[str]:
    """Return the holders after the first, each root by its best path.

    At most three are named; the rest are counted.
    """
    rest = [one_line(way.path) for way in held.holders[1 : MAX_HOLDERS + 1]]
    more = len(held.holders) - 1 - MAX_HOLDERS
    return [*rest, f"{more} more"] if more > 0 else rest
