"""Export a world of ranks as an HTML page with each rank's explorer.

The world is above, and the explorers unfold below it. The browser itself does the folding: it needs
no script, and opening one rank closes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.ranks import numbers_text
from nbmem.views import style
from nbmem.views.explorer import explorer_output
from nbmem.views.exports.interactive_page import OFFLINE, explorer_script, interactive_report
from nbmem.views.html import page, render_html
from nbmem.views.markup import Markup, element, join, one_line
from nbmem.views.world import highest, rank_groups, render_world_html
from nbmem.views.world_sentences import peak_of

if TYPE_CHECKING:
    from nbmem.report.analysis.world.world_report import RankRow, WorldReport
    from nbmem.report.model import Report

MAX_RANKS = 12
"""Ranks that can be unfolded, those with the highest peaks: a page with all would not load."""


def world_page(world: WorldReport, report_of: Callable[[int], Report]) -> str:
    """Return a world as a page that needs no other file.

    Returns:
        The page. Of equal ranks it contains the first.
    """
    kinds = [kind for kind in rank_groups(world) if kind.rows[0].held]
    shown = highest([(kind.name, kind.rows[0]) for kind in kinds], MAX_RANKS)
    names = {name for name, _ in shown}
    lower = [row for kind in kinds if kind.name not in names for row in kind.rows]
    body = [Markup(render_world_html(world))]
    if shown:
        body += [
            element(
                "div",
                *(_folded(name, row, report_of) for name, row in shown),
                *_left_out(lower),
                style=style.BOX,
            ),
            explorer_script(),
        ]
    return page(one_line(world.title) or "untitled", join(body), policy=OFFLINE)


def _folded(name: str, row: RankRow, report_of: Callable[[int], Report]) -> Markup:
    report = report_of(row.rank.number)
    return element(
        "details",
        element("summary", f"{name}: {peak_of(row)}", style=style.SUMMARY),
        interactive_report(render_html(report), explorer_output(report)),
        name="nbmem-rank",
        style=style.DETAILS,
    )


def _left_out(rows: Sequence[RankRow]) -> list[Markup]:
    if not rows:
        return []
    numbers = numbers_text([row.rank.number for row in rows])
    sentence = f"Lower peaks, not in this page: {numbers} (nbmem report FOLDER --rank N)."
    return [element("div", sentence, style=style.ABOUT)]
