"""Draw two recordings above each other: one filled, the other as a line.

Phases that both have begin and end at the same place, so a difference is one of memory and not of
the number of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.aligned_courses import aligned
from nbmem.views.charts import axes, phase_strips
from nbmem.views.charts.stacked_areas import Field, stairs
from nbmem.views.charts.svg import Picture, box, label, line, picture
from nbmem.views.markup import Markup, clipped, element, one_line
from nbmem.views.palette import COLOURS, INK

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.compare import Comparison, Side

LEFT, RIGHT = 80, 708
TOP, BOTTOM = 52, 252
_A = COLOURS[Category.BUFFERS]
_B = COLOURS[Category.GRADIENTS]
_NAME = 52
"""Characters of a side's label in the legend."""
_STRIPS = 38
"""Height of the rows of steps and phases; left out if there are none."""


def overlay(comparison: Comparison) -> Picture | None:
    """Draw both sides; None where neither side's memory changed."""
    a, b = comparison.a, comparison.b
    at_a, at_b = aligned(a.course, b.course)
    end = max(int(at_a[-1]), int(at_b[-1]))
    highest = max(a.reserved, b.reserved, a.allocated, b.allocated)
    if not end or not highest:
        return None
    field = Field(LEFT, TOP, RIGHT, BOTTOM, int(highest * 1.08))
    parts = [
        *axes.byte_lines(field.most, LEFT, RIGHT, field.y),
        *_curves(a.course.allocated, a.course.reserved, at_a, end, field, colour=_A, filled=True),
        *_curves(b.course.allocated, b.course.reserved, at_b, end, field, colour=_B, filled=False),
    ]
    side, at = (a, at_a) if len(a.course.phases) >= len(b.course.phases) else (b, at_b)
    bands = [(int(at[p[0]]), int(at[p[1]]), p[2], p[3]) for p in side.course.phases]

    def x(position: float) -> float:
        return LEFT + field.columns * position / end

    parts += phase_strips.strips(bands, x, top=8, bottom=BOTTOM)
    parts += _legend(a, b)
    alt = f"Allocated memory of {_peak('A', a)} and of {_peak('B', b)}, above each other."
    return picture(parts, top=0 if bands else _STRIPS, bottom=BOTTOM + 86, alt=alt)


def highest_in_columns(values: Ints, at: Ints, end: int, columns: int) -> Ints:
    """Return the highest value in each column of pixels.

    Args:
        values: Bytes after each event, shape (n,).
        at: Ascending positions of the events, shape (n,).
        end: The position at the right edge.
        columns: How many columns there are.

    Returns:
        Bytes, shape (m,): m is `columns`, or fewer where the events end before the right edge.
        A value holds until the next event, so it counts in the column of that event, too; the first
        value also holds before its event.
    """
    column = np.minimum(at * columns // end, columns - 1)
    highest = np.zeros(columns, np.int64)
    np.maximum.at(highest, column, values)
    before = np.searchsorted(column, np.arange(columns)) - 1  # the last event left of each column
    highest = np.maximum(highest, values[np.maximum(before, 0)])
    return highest[: int(column[-1]) + 1]


def _curves(  # noqa: PLR0913 - two curves, where they lie and how they look
    allocated: Ints, reserved: Ints, at: Ints, end: int, field: Field, *, colour: str, filled: bool
) -> list[Markup]:
    live, held = (
        highest_in_columns(values, at, end, field.columns) for values in (allocated, reserved)
    )
    short = field._replace(right=field.left + len(live))
    area = {"fill": colour, "opacity": "0.7"} if filled else {"fill": "none"}
    stroke = {} if filled else {"stroke": colour, "stroke_width": "2"}
    return [
        element("path", d=stairs(live, short, closed=filled), **area, **stroke),
        element(
            "path",
            d=stairs(held, short, closed=False),
            fill="none",
            stroke=colour,
            stroke_width="1.5",
            stroke_dasharray="5 3",
        ),
    ]


def _legend(a: Side, b: Side) -> list[Markup]:
    base = BOTTOM + 24
    dashes = line(LEFT, base + 39, LEFT + 18, base + 39, stroke=INK, stroke_dasharray="5 3")
    return [
        box(LEFT, base - 11, 18, 12, fill=_A, opacity="0.7"),
        label(LEFT + 26, base, _peak("A", a)),
        line(LEFT, base + 17, LEFT + 18, base + 17, stroke=_B, stroke_width="2"),
        label(LEFT + 26, base + 22, _peak("B", b)),
        dashes,
        label(LEFT + 26, base + 44, "dashed: reserved, the cache included", size=12),
    ]


def _peak(name: str, side: Side) -> str:
    shown = clipped(one_line(side.label), _NAME)
    return f"{name}, {shown}: peak {format_bytes(side.allocated)}"
