"""Draw the timeline: stacked categories, the reserved line, the peak.

Its axis is allocator events, not time: a slow interval hides nothing, and two runs of one cell have
equal pictures. The explorer shows either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import ACTIVE, Category
from nbmem.core.units import format_bytes
from nbmem.views import report_sentences
from nbmem.views.charts import axes, phase_strips
from nbmem.views.charts.stacked_areas import Field, areas, dashed, rows_by_column
from nbmem.views.charts.svg import Picture, box, fill, label, line, picture, text_width
from nbmem.views.markup import Markup, element
from nbmem.views.palette import INK, TINT_INK

if TYPE_CHECKING:
    from nbmem.report.model import Report, Timeline


LEFT, RIGHT = 80, 708
TOP, BOTTOM = 52, 292
_COLUMNS = RIGHT - LEFT
_STRIPS = 38
"""Height of the rows of steps and phases; left out if there are none."""
_NEAR = 0.6
"""The card's limit is drawn once the reserved bytes reach this part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The mapping from events and bytes to pixels.

    Attributes:
        end: The last event.
        top: The bytes at the upper edge.
        moments: The timeline, for the events at which a phase begins and ends.
    """

    end: int
    top: int
    moments: Timeline

    def x(self, event: float) -> float:
        return LEFT + _COLUMNS * min(max(event / max(self.end, 1), 0), 1)

    def x_of_time(self, t_ns: float) -> float:
        """Return the x of the first moment at or after a time.

        It is a whole event, independent of the clock.
        """
        row = int(np.searchsorted(self.moments.t_ns, t_ns))
        return self.x(int(self.moments.event[min(row, len(self.moments.event) - 1)]))

    def y(self, count: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * count / self.top


def timeline(report: Report) -> Picture | None:
    """Draw the timeline; None where no memory changed."""
    moments = report.timeline
    if len(moments.t_ns) < 2 or not moments.reserved.any():
        return None
    limit = _limit(report)
    highest = int(max(moments.reserved.max(), moments.held[:, list(ACTIVE)].sum(axis=1).max(), 1))
    near = limit is not None and highest >= _NEAR * limit
    scale = _Scale(
        end=int(moments.event[-1] * 1.012) + 1,  # space to show what is held after the last event
        top=int(max(highest, limit or 0) * 1.1) if near else int(highest * 1.16),
        moments=moments,
    )
    field = Field(LEFT, TOP, RIGHT, BOTTOM, scale.top)
    rows = rows_by_column(moments, scale.end, field.columns)
    held, reserved = moments.held[rows], moments.reserved[rows]
    shown = [c for c in ACTIVE if held[:, c].any()]
    cached = bool((reserved > held[:, list(ACTIVE)].sum(axis=1)).any())
    top = BOTTOM + 58
    pixel = scale.top / (BOTTOM - TOP)
    seen = [c for c in shown if held[:, c].max() >= pixel / 2]
    legend, height = _legend(seen, report, cached=cached, top=top)
    parts = [
        *_grid(scale, _counted(report)),
        *areas(held, reserved, shown, field),
        *phase_strips.strips(moments.bands, scale.x_of_time, top=8, bottom=BOTTOM),
        *([dashed(reserved, field)] if _has_allocator(report) else ()),
        *(_limit_line(report, limit, scale) if near and limit is not None else ()),
        *_peak(report, scale),
        *legend,
    ]
    top = 0 if moments.bands else _STRIPS
    return picture(parts, top=top, bottom=height, alt=_alt(report))


def _limit(report: Report) -> int | None:
    """Return the most bytes that the allocator could reserve.

    That is the card minus memory outside the allocator.
    """
    ledger = report.ledger_at_peak
    return report.device.total_bytes - ledger.outside


def _grid(scale: _Scale, counted: str) -> list[Markup]:
    parts = axes.byte_lines(scale.top, LEFT, RIGHT, scale.y)
    for tick in axes.count_ticks(scale.end):
        x = LEFT + _COLUMNS * tick.at / max(scale.end, 1)
        anchor = "end" if x > RIGHT - 24 else "middle"
        parts.append(line(x, BOTTOM, x, BOTTOM + 5, stroke=INK))
        parts.append(label(min(x, RIGHT), BOTTOM + 19, tick.text, anchor=anchor))
    parts.append(label((LEFT + RIGHT) / 2, BOTTOM + 36, counted, anchor="middle", size=12))
    return parts


def _counted(report: Report) -> str:
    """Return what the horizontal axis counts."""
    return "allocator events" if report.device.keeps_history else "changes seen"


def _has_allocator(report: Report) -> bool:
    """Return whether an allocator holds more than the live bytes."""
    return not report.device.is_host


def _limit_line(report: Report, limit: int, scale: _Scale) -> list[Markup]:
    """Draw the card's end, with its text on the side where no peak is."""
    y = scale.y(limit)
    right = scale.x(report.peak.at.event) <= (LEFT + RIGHT) / 2
    x, anchor = (RIGHT - 6, "end") if right else (LEFT + 6, "start")
    text = f"the card is full at {format_bytes(limit)} reserved"
    return [
        line(LEFT, y, RIGHT, y, stroke="#C8553D", stroke_width="2"),
        label(x, y - 6, text, anchor=anchor, colour="#C8553D", bold=True),
    ]


def _peak(report: Report, scale: _Scale) -> list[Markup]:
    x, y = scale.x(report.peak.at.event), scale.y(report.peak.allocated)
    text = f"peak {format_bytes(report.peak.allocated)}"
    width = text_width(text) + 16
    left = x - width - 10 if x > (LEFT + RIGHT) / 2 else x + 10
    top = min(max(y - 11, TOP), BOTTOM - 22)
    return [
        element("circle", cx=round(x), cy=round(y), r=5, fill=TINT_INK, stroke="#FFFFFF"),
        box(left, top, width, 22, rx=4, fill=TINT_INK, stroke="#FFFFFF"),
        label(left + width / 2, top + 15, text, anchor="middle", colour="#FFFFFF", bold=True),
    ]


def _legend(
    shown: list[Category], report: Report, *, cached: bool, top: int
) -> tuple[list[Markup], int]:
    """Draw the legend in lines as wide as the picture.

    Returns the parts and the picture's height.
    """
    entries = [(category.label, box(0, -10, 12, 12, fill=fill(category))) for category in shown]
    if cached:
        entries.append(("cached", box(0, -10, 12, 12, fill=fill(Category.CACHED_RELEASABLE))))
    dashes = line(0, -4, 24, -4, stroke=INK, stroke_width="1.5", stroke_dasharray="5 3")
    if _has_allocator(report):
        entries.append((f"reserved, up to {format_bytes(report.peak.reserved)}", dashes))
    parts: list[Markup] = []
    x, y = LEFT, top
    for name, key in entries:
        indent = 30 if key is dashes else 18
        width = round(text_width(name)) + indent + 16
        if x + width > RIGHT + 16:
            x, y = LEFT, y + 20
        moved = element("g", key, label(indent, 0, name), transform=f"translate({x} {y})")
        parts.append(moved)
        x += width
    return parts, y + 10


def _alt(report: Report) -> str:
    peak, moments = report.peak, report.timeline
    ledger = report.ledger_at_peak
    largest = sorted(ACTIVE, key=lambda c: -ledger[c])[:3]
    held = ", ".join(f"{c.label} {format_bytes(ledger[c])}" for c in largest if ledger[c])
    reserved = f"; reserved reaches {format_bytes(int(moments.reserved.max()))}"
    return (
        f"Memory over {moments.event[-1]:,} {_counted(report)}: allocated rises from "
        f"{format_bytes(report.ledger_at_start.allocated)} to a peak of "
        f"{format_bytes(peak.allocated)}{report_sentences.where(peak.at)}, and ends at "
        f"{format_bytes(report.ledger_at_end.allocated)}"
        f"{reserved if _has_allocator(report) else ''}. "
        f"At the peak: {held or 'nothing'}."
    )
