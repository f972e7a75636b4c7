"""Draw each rank's reserved memory at its peak as a bar, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.session.categories import RESERVED
from nbmem.core.units import format_bytes
from nbmem.views.charts.svg import WIDTH, Picture, box, fill, label, picture
from nbmem.views.palette import INK

if TYPE_CHECKING:
    from nbmem.report.analysis.world.world_report import RankRow
    from nbmem.views.markup import Markup

_LEFT, _RIGHT = 100, WIDTH - 90
_ROW, _BAR = 22, 16
_MAX_NAME = 12


def ranks_chart(lines: Sequence[tuple[str, RankRow]]) -> Picture | None:
    """Draw the ranks that wrote a session.

    Args:
        lines: The name of each bar (`0-7`) and the rank that it shows.

    Returns:
        None if there are fewer than two to compare.
    """
    shown = [(name, row) for name, row in lines if row.held]
    if len(shown) < 2:
        return None
    scale = max(1, *(_reserved(row) for _, row in shown))
    parts: list[Markup] = []
    for number, (name, row) in enumerate(shown):
        parts += _bar(name, row, _ROW * number + 3, scale)
    peaks = ", ".join(f"{name}: {format_bytes(_reserved(row))}" for name, row in shown)
    return picture(
        parts, bottom=_ROW * len(shown) + 4, alt=f"Reserved at each rank's peak: {peaks}"
    )


def _reserved(row: RankRow) -> int:
    return sum(row.held[category] for category in RESERVED)


def _bar(name: str, row: RankRow, top: int, scale: int) -> list[Markup]:
    name = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."
    parts = [label(_LEFT - 8, top + 13, name, anchor="end", size=12)]
    room, before = _RIGHT - _LEFT, 0
    for category in RESERVED:
        if size := row.held[category]:
            left = _LEFT + room * before / scale
            parts.append(box(left, top, room * size / scale, _BAR, fill=fill(category)))
            before += size
    end = room * before / scale
    parts.append(box(_LEFT, top, end, _BAR, fill="none", stroke=INK, stroke_opacity="0.6"))
    parts.append(label(_LEFT + end + 6, top + 13, format_bytes(before), size=12))
    return parts
