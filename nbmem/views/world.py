"""Render a world of ranks as text and HTML: verdict, ranks, spread.

Ranks of one kind share a line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from nbmem.core.session.categories import Category
from nbmem.core.session.ranks import numbers_text
from nbmem.core.units import format_bytes, format_ms
from nbmem.views import report_sentences, style
from nbmem.views.charts.ranks import ranks_chart
from nbmem.views.charts.small_multiples import ranks_over_time
from nbmem.views.grid import in_columns
from nbmem.views.markup import Markup, clipped, element, join, one_line, wrapped
from nbmem.views.text_block import block, with_swatch
from nbmem.views.world_sentences import STATES, about, sentences, verdict

if TYPE_CHECKING:
    from nbmem.report.analysis.world.world_report import RankAtFailure, RankRow, WorldReport
    from nbmem.views.charts.svg import Picture

MAX_ROWS = 24
"""Lines of a table of ranks; the others are summed up."""
MAX_DRAWN = 12
"""Ranks whose timelines are drawn: those with the highest peaks."""


def render_world(world: WorldReport, *, width: int = 100) -> str:
    """Write a world: highest peak, each rank, spread, first OOM, notes."""
    parts = [
        "\n".join(textwrap.wrap(verdict(world), width)) + f"\n{about(world)}",
        *(wrapped(one, width) for one in sentences(world)),
        ranks_table(world, width),
        spread_table(world),
        first_oom_table(world, width),
        "\n".join(wrapped(note, width, "- ") for note in world.notes),
    ]
    return "\n\n".join(filter(None, parts))


def render_world_html(world: WorldReport) -> str:
    """Draw a world for a notebook's output.

    It has no script, no style sheet and no address.
    """
    named = [(kind.name, kind.rows[0]) for kind in rank_groups(world)]
    drawn, over_time = ranks_chart(named[:MAX_ROWS]), ranks_over_time(highest(named, MAX_DRAWN))
    tables = (ranks_table(world, 120), first_oom_table(world, 120))
    parts = [
        element("div", verdict(world), style=style.VERDICT),
        element("div", about(world), style=style.ABOUT),
        *(element("div", one, style=style.ABOUT) for one in sentences(world)),
        *(_captioned("What each rank held at its peak", drawn) if drawn else []),
        *(_captioned("What each held over its own run", over_time) if over_time else []),
        block(tables[0].splitlines()),
        *_coloured(world),
        *([block(tables[1].splitlines())] if tables[1] else []),
        *(element("div", note, style=style.ABOUT) for note in world.notes),
    ]
    return element("div", join([Markup(f"\n{part}") for part in parts]), style=style.BOX)


def _captioned(caption: str, drawn: Picture) -> list[Markup]:
    return [element("div", caption, style=style.HEADING), drawn.image(style.PICTURE)]


class RankGroup(NamedTuple):
    """Neighbouring ranks that differ in nothing.

    Attributes:
        name: `rank 0-7`.
        rows: The ranks' rows.
    """

    name: str
    rows: list[RankRow]


def rank_groups(world: WorldReport) -> list[RankGroup]:
    """Return the groups of equal ranks, with their names."""
    return [RankGroup(f"rank {_numbers(rows)}", rows) for _, rows in _equal_ranks(world)]


def highest(named: Sequence[tuple[str, RankRow]], most: int) -> list[tuple[str, RankRow]]:
    """Return the ranks with the highest peaks, in their own order.

    Only ranks with a session count; `most` of them are returned.
    """
    known = [(name, row) for name, row in named if row.held]
    by_peak = sorted(range(len(known)), key=lambda i: -(known[i][1].allocated or 0))
    return [known[i] for i in sorted(by_peak[:most])]


def ranks_table(world: WorldReport, width: int) -> str:
    """Write a line for each rank; equal neighbours share one."""
    hosts, meshed = _visible_columns(world)
    reserved = () if world.on_host else ("reserved",)
    head = ["Rank", *["host"] * hosts, *["mesh"] * meshed]
    rows = [(_numbers(same), *line) for line, same in _equal_ranks(world)]
    shown, rest = rows[:MAX_ROWS], rows[MAX_ROWS:]
    table = in_columns(
        [(*head, "ended", "peak", *reserved, "process", "peak in"), *shown],
        left={0, *range(1, len(head) + 1), len(head) + 3 + len(reserved)},
    )
    more = [f"  ... {len(rest)} more lines left out ..."] if rest else []
    return "\n".join(clipped(line, width) for line in (*table.splitlines(), *more))


def _visible_columns(world: WorldReport) -> tuple[bool, bool]:
    """Return whether to show hosts, and whether to show mesh places.

    A column is shown if its values differ between ranks.
    """
    hosts = {row.rank.host for row in world.rows}
    return len(hosts) > 1, any(row.rank.mesh for row in world.rows)


def _equal_ranks(world: WorldReport) -> list[tuple[tuple[str, ...], list[RankRow]]]:
    """Return the table's lines, each with the neighbouring ranks it is about."""
    hosts, meshed = _visible_columns(world)
    reserves = not world.on_host
    found = groupby(world.rows, key=lambda row: _line(row, hosts, meshed, reserves))
    return [(line, list(same)) for line, same in found]


def _line(row: RankRow, host: bool, mesh: bool, reserves: bool) -> tuple[str, ...]:  # noqa: FBT001
    place = report_sentences.phase_and_step(row.phase, row.step) or ""
    text = " ".join(f"{one_line(name)} {at.index}/{at.size}" for name, at in row.rank.mesh.items())
    return (
        *([one_line(row.rank.host)] if host else []),
        *([text] if mesh else []),
        STATES[row.state] if row.refusal is None else "out of memory",
        format_bytes(row.allocated),
        *([format_bytes(row.reserved)] if reserves else []),
        format_bytes(row.process),
        place,
    )


def _numbers(rows: Sequence[RankRow]) -> str:
    """Return the ranks of a line, and the ones that were run for others."""
    own = [row.rank.number for row in rows]
    others = [number for row in rows for number in row.rank.stands_for]
    text = numbers_text([*own, *others]).partition(" ")[2]
    return f"{text} (run: {numbers_text(own).partition(' ')[2]})" if others else text


def _coloured(world: WorldReport) -> list[Markup]:
    """Return the table of the spread, with the charts' colours."""
    table = spread_table(world)
    if not table:
        return []
    head, *lines = table.splitlines()
    spreads = zip(world.spreads, lines, strict=True)
    return [block([head, *(with_swatch(one.category, line) for one, line in spreads)])]


def spread_table(world: WorldReport) -> str:
    """Write each category over the ranks; empty for a single one."""
    if len([row for row in world.rows if row.held]) < 2:
        return ""
    table = [("Over the ranks, at their peaks", "least", "rank", "most", "rank", "mean")]
    kind = world.device.kind if world.device is not None else "cuda"
    for one in world.spreads:
        same = one.low == one.high
        table.append(
            (
                f"  {report_sentences.label(one.category, kind=kind)}",
                format_bytes(one.low),
                "" if same else str(one.low_rank),
                "same" if same else format_bytes(one.high),
                "" if same else str(one.high_rank),
                format_bytes(one.mean),
            )
        )
    return in_columns(table)


def first_oom_table(world: WorldReport, width: int) -> str:
    """Write what every rank held when the first ran out of memory.

    Empty if none did.
    """
    out = world.first_out
    if out is None:
        return ""
    refusal = out.refusal
    table = [("When it ran out", "allocated", "reserved", "largest", "at")]
    table.append(
        (
            f"  rank {out.rank}",
            format_bytes(refusal.allocated),
            format_bytes(refusal.reserved),
            f"{format_bytes(refusal.free)} were free",
            "",
        )
    )
    for then in out.others[:MAX_ROWS]:
        place = report_sentences.phase_and_step(then.phase, then.step) or ""
        before = "" if then.t_ns is None else _before(refusal.t_ns - then.t_ns)
        table.append(
            (
                f"  rank {then.rank}",
                format_bytes(then.allocated),
                format_bytes(then.reserved),
                _largest(then),
                f"{place}{before}",
            )
        )
    if rest := out.others[MAX_ROWS:]:
        table.append((f"  {len(rest)} more ranks", "", "", "", ""))
    lines = in_columns(table, left={0, 3, 4}).splitlines()
    return "\n".join(clipped(line, width) for line in lines)


def _before(elapsed_ns: int) -> str:
    return f" ({format_ms(elapsed_ns)} before)" if elapsed_ns else ""


def _largest(then: RankAtFailure) -> str:
    live = [(size, c) for c, size in then.held.items() if size and c <= Category.UNKNOWN]
    text = [f"{format_bytes(size)} {c.label}" for size, c in sorted(live, reverse=True)[:2]]
    return ", ".join(text)
