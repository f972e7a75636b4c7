"""Render the result of `plan` over worlds: how many cards it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.code_block import code_html
from nbmem.views.grid import Grid, TableCell
from nbmem.views.markup import Markup, element
from nbmem.views.notes_html import fold, listed

if TYPE_CHECKING:
    from nbmem.report.estimate_results import Probe, Way, Worlds

_HELD = ("weights", "gradients", "optimizer state", "activations", "communication")
"""Categories with a column of their own."""


def render_text(worlds: Worlds) -> str:
    """Render the result for a terminal."""
    blocks = ["\n".join(worlds.sentences), _table(worlds).text()]
    if worlds.ways:
        blocks += _listed("What it costs", _prices(worlds))
        blocks += _listed("Not run", _not_run(worlds))
        for way in worlds.ways:
            if way.cheapest:
                lines = "".join(f"\n  {line}" for line in (way.diff or way.code).splitlines())
                blocks.append(f"{way.title} on {way.ranks} cards, in this program{lines}")
    return "\n\n".join(blocks)


def _listed(title: str, lines: list[str]) -> list[str]:
    return ["\n  ".join([title, *lines])] if lines else []


def render_html(worlds: Worlds) -> str:
    """Render the result for a notebook's output."""
    verdict, *rest = worlds.sentences
    parts: list[Markup] = [_table(worlds).html()]
    applied = [way for way in worlds.ways if way.code]
    codes = (
        element("div", f"{way.title}, {way.ranks} cards", code_html(way.diff or way.code))
        for way in applied
    )
    if applied:
        parts.append(fold("Applied to this program", *codes))
    for title, lines in (("What it costs", _prices(worlds)), ("Not run", _not_run(worlds))):
        if lines:
            parts.append(fold(title, listed(lines)))
    return element(
        "div",
        element("div", verdict, style=style.VERDICT),
        *parts,
        listed(rest),
        style=style.BOX,
    )


def _prices(worlds: Worlds) -> list[str]:
    """Return what each way costs, once, in the smallest world that ran it."""
    found: dict[str, str] = {}
    for way in worlds.ways:
        if way.probe is not None and way.price:
            found.setdefault(way.key, f"{way.title}: {way.price}")
    return list(found.values())


def _not_run(worlds: Worlds) -> list[str]:
    """Return what could not be run, with the worlds and the reason."""
    found: dict[tuple[str, str], list[int]] = {}
    for way in worlds.ways:
        if way.why_not is not None:
            found.setdefault((way.title, way.why_not), []).append(way.ranks)
    return [
        f"{title} on {', '.join(f'{n:,}' for n in ranks)} cards: {why}"
        for (title, why), ranks in found.items()
    ]


def _table(worlds: Worlds) -> Grid:
    rows = worlds.ways or [(ranks, probe) for ranks, probe in worlds.runs]
    probes = [row[1] if isinstance(row, tuple) else row.probe for row in rows]
    held = [name for name in _HELD if any(p is not None and p.held.get(name) for p in probes)]
    if worlds.ways:
        alone = worlds.ways[0].probe
        enough = worlds.ways[0].ranks == 1 and alone is not None and alone.fits
        word = "yes, the first way" if enough else "yes, the fewest"
        return Grid(
            title="",
            head=("cards", "", "process", *held, "fits", "communicated each step"),
            rows=tuple(
                _way(way, way.probe, held, word) for way in worlds.ways if way.probe is not None
            ),
            left=frozenset({1, 3 + len(held), 4 + len(held)}),
        )
    kinds = list(dict.fromkeys(kind for _, probe in worlds.runs for kind in probe.sent))
    return Grid(
        title="",
        head=(
            "ranks", "process", *held, *(f"{kind}\neach step" for kind in kinds), "fits"
        ),
        rows=tuple(_row(ranks, probe, held, kinds) for ranks, probe in worlds.runs),
        left=frozenset({3 + len(held) + len(kinds) - 1}),
    )  # fmt: skip


def _way(way: Way, probe: Probe, held: list[str], word: str) -> tuple[TableCell, ...]:
    verdict = word if way.cheapest else "yes" if probe.fits else "no"
    sent = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in probe.sent.items())
    return (
        TableCell(text=f"{way.ranks:,}"),
        TableCell(text=way.title, strong=way.cheapest),
        *_amounts([probe.need, *map(probe.held.get, held)]),
        TableCell(text=verdict, strong=way.cheapest),
        TableCell(text=sent),
    )


def _row(ranks: int, probe: Probe, held: list[str], kinds: list[str]) -> tuple[TableCell, ...]:
    verdict = "yes" if probe.fits else "no"
    return (
        TableCell(text=f"{ranks:,}"),
        *_amounts([probe.need, *map(probe.held.get, held), *map(probe.sent.get, kinds)]),
        TableCell(text=verdict if probe.ran else "fails", strong=probe.fits),
    )


def _amounts(counts: list[int | None]) -> list[TableCell]:
    return [
        TableCell(text="" if count is None else format_bytes(count), exact=f"{count or 0:,} B")
        for count in counts
    ]
