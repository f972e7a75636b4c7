"""The answer to "how many cards does it need": text and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.grid import Grid, TableCell
from nbmem.views.html import page
from nbmem.views.markup import element

if TYPE_CHECKING:
    from nbmem.answers import Probe, Worlds

_HELD = ("weights", "gradients", "optimizer state", "activations", "communication")
"""Categories with a column of their own."""


def render_text(worlds: Worlds) -> str:
    """For a terminal."""
    return "\n\n".join(["\n".join(worlds.sentences), _table(worlds).text()])


def render_html(worlds: Worlds) -> str:
    """For a notebook's output."""
    verdict, *rest = worlds.sentences
    return element(
        "div",
        element("div", verdict, style=style.VERDICT),
        _table(worlds).html(),
        element("ul", *(element("li", text) for text in rest), style=style.NOTES),
        style=style.BOX,
    )


def render_page(worlds: Worlds) -> str:
    """A page that stands alone."""
    return page(worlds.title, render_html(worlds))


def mimebundle(worlds: Worlds) -> dict[str, str]:
    """Both, for a notebook."""
    return {"text/plain": render_text(worlds), "text/html": render_html(worlds)}


def _table(worlds: Worlds) -> Grid:
    held = [name for name in _HELD if any(probe.held.get(name) for _, probe in worlds.runs)]
    kinds = list(dict.fromkeys(kind for _, probe in worlds.runs for kind in probe.sent))
    return Grid(
        title="",
        head=(
            "ranks", "process", *held, *(f"{kind}\neach step" for kind in kinds), "fits"
        ),
        rows=tuple(_row(ranks, probe, held, kinds) for ranks, probe in worlds.runs),
        left=frozenset({3 + len(held) + len(kinds) - 1}),
    )  # fmt: skip


def _row(ranks: int, probe: Probe, held: list[str], kinds: list[str]) -> tuple[TableCell, ...]:
    verdict = "yes" if probe.fits else "no"
    amounts = [probe.need, *map(probe.held.get, held), *map(probe.sent.get, kinds)]
    return (
        TableCell(text=f"{ranks:,}"),
        *(
            TableCell(text="" if count is None else format_bytes(count), exact=f"{count or 0:,} B")
            for count in amounts
        ),
        TableCell(text=verdict if probe.ran else "fails", strong=probe.fits),
    )
