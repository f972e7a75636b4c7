"""Round ticks for axes of bytes and of counts, and the lines at them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.units import GIB, KIB, MIB
from nbmem.views.charts.svg import label, line
from nbmem.views.palette import INK

if TYPE_CHECKING:
    from nbmem.views.markup import Markup


@dataclass(frozen=True, slots=True)
class Tick:
    """A position on an axis and its text."""

    at: float
    text: str


_BYTE_UNITS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))


def byte_ticks(top: int, *, most: int = 5) -> list[Tick]:
    """Return ticks from 0 that do not exceed `top` bytes."""
    size, unit = next((u for u in _BYTE_UNITS if top >= u[0]), _BYTE_UNITS[-1])
    return _ticks(top, size, unit, most)


def byte_lines(top: int, left: int, right: int, y: Callable[[float], float]) -> list[Markup]:
    """Draw a line across the picture at each round amount, with its text.

    Args:
        top: Bytes at the upper edge.
        left: Where the lines begin, in pixels.
        right: Where they end.
        y: Returns the height of an amount in pixels.
    """
    parts = []
    for tick in byte_ticks(top):
        parts.append(line(left, y(tick.at), right, y(tick.at), stroke=INK, stroke_opacity="0.3"))
        parts.append(label(left - 8, y(tick.at) + 4, tick.text, anchor="end"))
    return parts


def count_ticks(top: int, *, most: int = 6) -> list[Tick]:
    """Return ticks from 0 that do not exceed `top`."""
    return [Tick(tick.at, tick.text.strip()) for tick in _ticks(top, 1, "", most, smallest=1)]


def _ticks(top: float, size: int, unit: str, most: int, *, smallest: float = 0) -> list[Tick]:
    if top <= 0:
        return [Tick(0, f"0 {unit}")]
    step = max(_round_step(top / size / most), smallest)
    count = int(top / size / step + 1e-9)
    return [Tick(i * step * size, f"{_number(i * step)} {unit}") for i in range(count + 1)]


def _round_step(least: float) -> float:
    """Return the smallest round step that is at least `least`.

    Round steps are 1, 2, 2.5 and 5 times a power of ten.
    """
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= least * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".")
