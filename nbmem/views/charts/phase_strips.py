"""Draw the strips above the timeline that name phases and count steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from nbmem.views.charts.svg import box, label, line, text_width
from nbmem.views.markup import Markup, one_line
from nbmem.views.palette import INK, OTHER_TINT, PHASE_TINTS, TINT_INK

if TYPE_CHECKING:
    from nbmem.report.model import Timeline

    Band = tuple[int, int, str, int | None]

_SHORT = {
    "forward": "fwd",
    "backward": "bwd",
    "optimizer": "opt",
    "zero_grad": "zero",
    "inference": "inf",
}
_ROW = 18
_HIDDEN = 0.35
"""A time axis hides the steps if the median step has less than this part of an equal share."""


def time_hides_steps(moments: Timeline) -> bool:
    """Return whether a slow stretch leaves the steps no room on a time axis.

    Loading is an example, or the first step's kernels.
    """
    steps = _steps(moments.bands)
    span = int(moments.t_ns[-1])
    if not steps or span <= 0 or moments.event[-1] <= moments.event[0]:
        return False
    median = float(np.median([t1 - t0 for t0, t1, _ in steps]))
    return median / span < _HIDDEN / len(steps)


def strips(
    found: Sequence[Band], x: Callable[[float], float], *, top: int, bottom: int
) -> list[Markup]:
    """Draw the row of steps, the row of phases, and the start of each step.

    A line marks where each step begins.
    """
    parts = _step_row(_steps(found), x, top=top, bottom=bottom)
    widths = [x(t1) - x(t0) for t0, t1, _, _ in found]
    if widths and float(np.median(widths)) >= 2:
        for (t0, _, name, _), width in zip(found, widths, strict=True):
            parts += _cell(x(t0), top + _ROW + 2, max(width, 1), _fitting(name, width), _tint(name))
    return parts


def _steps(found: Sequence[Band]) -> list[tuple[int, int, int]]:
    return [
        (group[0][0], group[-1][1], step)
        for step, rows in groupby(found, key=lambda band: band[3])
        if step is not None and (group := list(rows))
    ]


def _step_row(
    steps: list[tuple[int, int, int]], x: Callable[[float], float], *, top: int, bottom: int
) -> list[Markup]:
    if not steps:
        return []
    median = float(np.median([x(t1) - x(t0) for t0, t1, _ in steps]))
    if median < 4:
        # Too many to tell apart: one bar shows their number.
        first, last = steps[0], steps[-1]
        text = f"steps {first[2]} to {last[2]}"
        return _cell(x(first[0]), top, x(last[1]) - x(first[0]), text, OTHER_TINT)
    parts: list[Markup] = []
    named_to = 0.0
    for t0, t1, step in steps:
        left, width = x(t0), x(t1) - x(t0)
        text = next((t for t in (f"step {step}", str(step)) if text_width(t, 12) + 4 <= width), "")
        if not text and left >= named_to and text_width(str(step), 12) <= 3 * width:
            text = ""
        named_to = left + width
        parts += _cell(left, top, max(width, 1), text, OTHER_TINT)
        parts.append(line(left, top, left, bottom, stroke=INK, stroke_opacity="0.45"))
    return parts


def _cell(left: float, top: int, width: float, text: str, tint: str) -> list[Markup]:
    # One pixel of gap between neighbours, unless that would fill the bar.
    shown = width - 1 if width >= 3 else width
    parts = [box(left, top, shown, _ROW, fill=tint)]
    if text:
        middle = left + shown / 2
        parts.append(label(middle, top + 13, text, anchor="middle", size=12, colour=TINT_INK))
    return parts


def _fitting(name: str, width: float) -> str:
    clean = one_line(name)
    forms = (clean, _SHORT.get(name, clean))
    return next((form for form in forms if text_width(form, 12) + 4 <= width), "")


def _tint(name: str) -> str:
    return PHASE_TINTS.get(name, OTHER_TINT)
