"""Draw the curve of a `fit`: each value's memory and the card's limit.

A dot is the process's bytes, which must stay below the card's limit. The line below is the formula:
allocated bytes. A band marks the values that fit by luck.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.views.charts import axes
from nbmem.views.charts.svg import Picture, label, line, picture
from nbmem.views.markup import Markup, element
from nbmem.views.palette import COLOURS, INK

if TYPE_CHECKING:
    from nbmem.report.estimate_results import Fit, Probe

WIDTH = 540
"""Narrower than other pictures: it is legible beside tables and in a narrow output."""
LEFT, RIGHT, TOP, BOTTOM = 66, 530, 12, 250
FITS = COLOURS[Category.ACTIVATIONS]
FULL = COLOURS[Category.GRADIENTS]
LINE = COLOURS[Category.WEIGHTS]
_LINE_HEIGHT = 18
"""Height of a line of text, in pixels."""
_AXIS_END = 1.35
"""End of the axis, as a multiple of the first value that does not fit."""


def growth(fit: Fit) -> Picture | None:
    """Draw the search; None if fewer than two values ran."""
    ran = [p for p in fit.probes if p.ran and p.value is not None]
    if len(ran) < 2:
        return None
    right = right_edge(fit)
    shown = [p for p in ran if (p.value or 0) <= right]
    top = max(fit.card.total, *(p.need for p in shown)) * 1.08

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value / right

    def y(count: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * max(count, 0) / top

    parts: list[Markup] = _band(fit, x)
    ticks = axes.byte_ticks(int(top))
    for tick in ticks:
        parts.append(line(LEFT, y(tick.at), RIGHT, y(tick.at), stroke=INK, stroke_opacity="0.3"))
        parts.append(label(LEFT - 8, y(tick.at) + 5, tick.text, anchor="end"))
    parts += [
        label(x(tick.at), BOTTOM + 20, tick.text, anchor="middle")
        for tick in axes.count_ticks(int(right))
    ]
    parts.append(label((LEFT + RIGHT) / 2, BOTTOM + 40, fit.variable, anchor="middle"))
    limit = fit.card.total - fit.card.margin
    parts.append(line(LEFT, y(limit), RIGHT, y(limit), stroke=FULL, stroke_dasharray="6 4"))
    crossed = any(0 < y(limit) - y(tick.at) < _LINE_HEIGHT for tick in ticks)
    base = y(limit) + (_LINE_HEIGHT if crossed else -7)
    parts.append(label(LEFT + 6, base, f"{fit.card.name} less the margin: {format_bytes(limit)}"))
    if fit.total is not None:
        points = [(x(right * i / 60), y(fit.total.at(right * i / 60))) for i in range(61)]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(element("path", d=path, fill="none", stroke=LINE, stroke_width="2"))
    parts += [_dot(f"{x(p.value or 0):.1f}", f"{y(p.need):.1f}", p) for p in shown]
    parts += _legend(fit)
    return picture(parts, bottom=BOTTOM + 74, alt=_alt(fit), width=WIDTH)


def right_edge(fit: Fit) -> float:
    """Return the value at the right edge of the picture; the left edge is 0."""
    edge = fit.limit or fit.best or fit.probes[-1].value or 1
    return max(min(edge * _AXIS_END, max(p.value or 0 for p in fit.probes if p.ran) * 1.05), 1)


def _band(fit: Fit, x: Callable[[float], float]) -> list[Markup]:
    """Draw the values that fit by luck; nothing where there are none."""
    if fit.best is None or fit.safe == fit.best:
        return []
    first = fit.low if fit.safe is None else fit.safe + fit.step
    left, right = x(first), x(fit.best)
    box = element(
        "rect",
        x=f"{left:.1f}",
        y=TOP,
        width=f"{max(right - left, 2):.1f}",
        height=BOTTOM - TOP,
        fill=FULL,
        fill_opacity="0.18",
    )
    return [box, label((left + right) / 2, BOTTOM - 8, "by luck", anchor="middle")]


def _dot(across: str | int, down: str | int, probe: Probe | None, *, fits: bool = True) -> Markup:
    """Draw a run: filled on the card itself, a ring on an endless one."""
    fits = fits if probe is None else probe.fits
    if fits:
        return element("circle", cx=across, cy=down, r=4, fill=FITS)
    return element("circle", cx=across, cy=down, r=4, fill="none", stroke=FULL, stroke_width="2")


def _legend(fit: Fit) -> list[Markup]:
    at, base = LEFT, BOTTOM + 62
    marks = [
        (_dot(at + 5, base - 5, None), "process: fits", 122),
        (_dot(at + 127, base - 5, None, fits=False), "does not fit, on an endless card", 244),
    ]
    parts: list[Markup] = []
    for mark, text, width in marks:
        parts += [mark, label(at + 16, base, text)]
        at += width
    if fit.total is not None:
        parts.append(line(at, base - 5, at + 18, base - 5, stroke=LINE, stroke_width="2"))
        parts.append(label(at + 26, base, "allocated"))
    return parts


def _alt(fit: Fit) -> str:
    ends = "nothing fits" if fit.best is None else f"{fit.best} fits"
    if fit.safe not in {None, fit.best}:
        ends = f"up to {fit.safe} always fits, up to {fit.best} by luck"
    return f"Peak memory against {fit.variable} on {with_article(fit.card.name)}: {ends}."
