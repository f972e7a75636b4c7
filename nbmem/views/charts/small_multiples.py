"""Draw ranks beside each other as small timelines on one scale.

Each goes from the beginning of its recording to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.categories import ACTIVE
from nbmem.core.units import format_bytes
from nbmem.views.charts.stacked_areas import Field, areas, dashed, rows_by_column
from nbmem.views.charts.svg import WIDTH, Picture, label, line, picture, text_width
from nbmem.views.palette import INK

if TYPE_CHECKING:
    from nbmem.report.analysis.world.world_report import RankRow
    from nbmem.report.model import Timeline
    from nbmem.views.markup import Markup

_COLUMNS, _GAP = 4, 16
_CHART_WIDTH = (WIDTH - (_COLUMNS - 1) * _GAP) // _COLUMNS
_CHART_HEIGHT, _LABEL_HEIGHT = 64, 18
_FONT_SIZE = 12


def ranks_over_time(lines: Sequence[tuple[str, RankRow]]) -> Picture | None:
    """Draw the ranks that wrote a session, each over its own allocator events.

    Args:
        lines: The name of each (`rank 0-7`) and the rank that it shows.

    Returns:
        None if there are fewer than two to compare.
    """
    drawn = [(name, row, row.timeline) for name, row in lines if row.timeline is not None]
    if len(drawn) < 2:
        return None
    most = max(1, *(int(timeline.reserved.max()) for *_, timeline in drawn))
    parts: list[Markup] = []
    for number, (name, row, timeline) in enumerate(drawn):
        down, across = divmod(number, _COLUMNS)
        left, top = (
            across * (_CHART_WIDTH + _GAP),
            down * (_CHART_HEIGHT + _LABEL_HEIGHT + _GAP) + _LABEL_HEIGHT,
        )
        field = Field(left, top, left + _CHART_WIDTH, top + _CHART_HEIGHT, most)
        parts += _draw_rank(name, row, timeline, field)
    description = ", ".join(f"{name}: peak {format_bytes(row.allocated)}" for name, row, _ in drawn)
    rows = -(-len(drawn) // _COLUMNS)
    return picture(
        parts,
        bottom=rows * (_CHART_HEIGHT + _LABEL_HEIGHT + _GAP),
        alt=f"What each rank held over its run, on one scale. {description}",
    )


def _draw_rank(name: str, row: RankRow, timeline: Timeline, field: Field) -> list[Markup]:
    peak = format_bytes(row.allocated)
    caches = row.device is not None and not row.device.is_host
    rows = rows_by_column(timeline, int(timeline.event[-1]) + 1, field.columns)
    held, reserved = timeline.held[rows], timeline.reserved[rows]
    pixel = field.most / field.height
    shown = [category for category in ACTIVE if held[:, category].max() >= pixel / 2]
    room = int((_CHART_WIDTH - text_width(peak, _FONT_SIZE) - 8) / text_width("x", _FONT_SIZE))
    name = name if len(name) <= room else f"{name[: room - 3]}..."
    return [
        label(field.left, field.top - 5, name, size=_FONT_SIZE),
        label(field.right, field.top - 5, peak, anchor="end", size=_FONT_SIZE),
        *areas(held, reserved, shown, field),
        *([dashed(reserved, field)] if caches else []),
        line(field.left, field.bottom, field.right, field.bottom, stroke=INK, stroke_opacity="0.6"),
    ]
