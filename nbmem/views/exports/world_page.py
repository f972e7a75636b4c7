"""A world of ranks as an HTML page: the world above, and each rank's explorer to unfold below it.

What folds is the browser's own: it needs no script, and opening one rank closes the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.core.world import numbers_text
from nbmem.views import style, wording
from nbmem.views.explorer import explorer_output
from nbmem.views.exports.living import OFFLINE, living, player
from nbmem.views.html import page, render_html
from nbmem.views.markup import Markup, element, join, one_line
from nbmem.views.world import kinds_of_rank, render_world_html

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.analysis.world.model import RankRow, WorldReport
    from nbmem.report import Report

MOST = 12
"""Ranks that can be unfolded, those with the highest peaks: a page of all would not load."""


def world_page(world: WorldReport, report_of: Callable[[int], Report]) -> str:
    """Write a world as a page that needs nothing else.

    Args:
        world: What the page shows of it.
        report_of: Reads the report of a rank, by its number.

    Returns:
        The page. Of ranks that differ in nothing the first is there.
    """
    kinds = [kind for kind in kinds_of_rank(world) if kind.rows[0].held]
    by_peak = sorted(kinds, key=lambda kind: -(kind.rows[0].allocated or 0))
    shown, lower = [k for k in kinds if k in by_peak[:MOST]], by_peak[MOST:]
    body = [Markup(render_world_html(world))]
    if shown:
        body += [
            element(
                "div",
                *(_folded(kind.name, kind.rows[0], report_of) for kind in shown),
                *_left_out([row for kind in lower for row in kind.rows]),
                style=style.BOX,
            ),
            player(),
        ]
    return page(one_line(world.title) or "untitled", join(body), policy=OFFLINE)


def _folded(name: str, row: RankRow, report_of: Callable[[int], Report]) -> Markup:
    report = report_of(row.rank.number)
    place = wording.phase_and_step(row.phase, row.step)
    told = f"{name}: peak {format_bytes(row.allocated)}{f' in {place}' if place else ''}"
    return element(
        "details",
        element("summary", told, style=style.SUMMARY),
        living(render_html(report), explorer_output(report)),
        name="nbmem-rank",
        style=style.DETAILS,
    )


def _left_out(rows: Sequence[RankRow]) -> list[Markup]:
    if not rows:
        return []
    numbers = numbers_text([row.rank.number for row in rows])
    told = f"Lower peaks, not in this page: {numbers} (nbmem report FOLDER --rank N)."
    return [element("div", told, style=style.ABOUT)]
