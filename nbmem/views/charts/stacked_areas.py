"""Draw stacked categories as steps: memory is constant between events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import ACTIVE, Category
from nbmem.views.charts.svg import fill
from nbmem.views.markup import Markup, element
from nbmem.views.palette import INK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.arrays import Ints
    from nbmem.report.model import Timeline


class Field(NamedTuple):
    """The rectangle in which curves are drawn.

    Attributes:
        left, top, right, bottom: In pixels.
        most: The bytes at the upper edge.
    """

    left: int
    top: int
    right: int
    bottom: int
    most: int

    @property
    def columns(self) -> int:
        """Pixels from left to right."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """Pixels from bottom to top."""
        return self.bottom - self.top

    def y(self, count: float) -> float:
        """Return the height of an amount in pixels."""
        return self.bottom - self.height * count / self.most


def rows_by_column(moments: Timeline, end: int, columns: int) -> Ints:
    """Choose the moment to draw in each pixel column: the highest one.

    Args:
        moments: The timeline.
        end: The event at the right edge.
        columns: How many there are.

    Returns:
        Indices into the timeline, shape (columns,). A column without a moment repeats the last.
    """
    at = np.clip(moments.event * columns // max(end, 1), 0, columns - 1)
    totals = moments.held[:, list(ACTIVE)].sum(axis=1)
    chosen = np.zeros(columns, np.int64)
    last = 0
    starts = np.searchsorted(at, np.arange(columns + 1))
    for column in range(columns):
        inside = range(starts[column], starts[column + 1])
        chosen[column] = max((last, *inside), key=lambda row: int(totals[row]))
        last = inside[-1] if inside else last
    return chosen


def areas(held: Ints, reserved: Ints, shown: Sequence[Category], field: Field) -> list[Markup]:
    """Draw the reserved bytes, and before them the live ones by category.

    Args:
        held: Bytes by category, shape (columns, len(Category)).
        reserved: Bytes held from the driver, shape (columns,).
        shown: The categories to stack, the lowest first.
        field: The area to draw in.
    """
    # From the top of the stack down, each area reaching to the bottom: one edge each, not two.
    parts = [
        element(
            "path",
            d=stairs(reserved, field, closed=True),
            fill=fill(Category.CACHED_RELEASABLE),
            opacity="0.45",
        )
    ]
    tops = np.cumsum(held[:, list(shown)], axis=1) if shown else held[:, :0]
    for i in reversed(range(len(shown))):
        path = stairs(tops[:, i], field, closed=True)
        parts.append(element("path", d=path, fill=fill(shown[i])))
    return parts


def dashed(values: Ints, field: Field) -> Markup:
    """Draw the dashed line of the reserved bytes."""
    return element(
        "path",
        d=stairs(values, field, closed=False),
        fill="none",
        stroke=INK,
        stroke_width="1.5",
        stroke_dasharray="5 3",
    )


def stairs(values: NDArray[np.float64] | Ints, field: Field, *, closed: bool) -> str:
    """Return a stepped path over all columns.

    It has whole pixels and relative steps, to be short. `closed` adds the edges of an area.
    """
    left, bottom = field.left, field.bottom
    heights = np.rint(field.height * np.asarray(values) / field.most).astype(np.int64)
    changes = np.flatnonzero(np.diff(heights)) + 1
    path = [f"M{left} {bottom}v{-heights[0]}" if closed else f"M{left} {bottom - heights[0]}"]
    before = 0
    for column in changes.tolist():
        path.append(f"h{column - before}v{heights[column - 1] - heights[column]}")
        before = column
    path.append(f"H{field.right}")
    if closed:
        path.append(f"V{bottom}z")
    return "".join(path)
