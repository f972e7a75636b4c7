"""Draw the elements of every picture: page, hatches, labels, boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.views.markup import Markup, data_uri, element
from nbmem.views.palette import COLOURS, HATCHES, INK

if TYPE_CHECKING:
    from nbmem.core.session.categories import Category

WIDTH = 720
"""The usual width: text stays readable when a narrow output shrinks it to 560."""
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An SVG picture without a background, for light and dark pages alike.

    Attributes:
        svg: The document.
        height: In pixels.
        alt: The facts in the picture, as a sentence.
    """

    svg: str
    height: int
    alt: str
    width: int = WIDTH

    def image(self, style: str) -> Markup:
        """Return the picture as an `<img>`, which untrusted notebooks keep."""
        return element(
            "img",
            src=data_uri(self.svg),
            alt=self.alt,
            width=self.width,
            height=self.height,
            style=style,
        )


def picture(
    parts: list[Markup], *, bottom: int, alt: str, top: int = 0, width: int = WIDTH
) -> Picture:
    """Put what is drawn between `top` and `bottom` into a document."""
    height = bottom - top
    svg = element(
        "svg",
        element("title", alt),
        element("defs", *(_hatch(category) for category in HATCHES)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 {top} {width} {height}",
        width=width,
        height=height,
        font_family=FONT,
        font_size=14,
        fill=INK,
    )
    return Picture(svg=svg, height=height, alt=alt, width=width)


def fill(category: Category) -> str:
    """Return the paint of a category: its colour, or its hatch."""
    return f"url(#{category.key})" if category in HATCHES else COLOURS[category]


def _hatch(category: Category) -> Markup:
    return element(
        "pattern",
        element("rect", width=6, height=6, fill=COLOURS[category]),
        element("path", d="M-1 5l2 2M0 0l6 6M5 -1l2 2", stroke=HATCHES[category], stroke_width="1"),
        id=category.key,
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
    )


def text_width(text: str, size: int = 14) -> float:
    """Estimate the width of a text in pixels; no font is at hand."""
    return 0.58 * size * len(text)


def label(  # noqa: PLR0913 - position, text and style of a label
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int | None = None,
    colour: str | None = None,
    bold: bool = False,
) -> Markup:
    """Draw a line of text; `y` is its baseline."""
    return element(
        "text",
        text,
        x=round(x),
        y=round(y),
        text_anchor=None if anchor == "start" else anchor,
        font_size=size,
        fill=colour,
        font_weight=600 if bold else None,
    )


def box(x: float, y: float, width: float, height: float, **paint: str | int | None) -> Markup:
    """Draw a rectangle on whole pixels, so that its edges are sharp."""
    left, right = round(x), round(x + width)
    return element("rect", x=left, y=round(y), width=right - left, height=round(height), **paint)


def line(x1: float, y1: float, x2: float, y2: float, **paint: str | int | None) -> Markup:
    """Draw a line on the middle of pixels, so that it is one pixel wide."""
    return element(
        "path", d=f"M{round(x1)}.5 {round(y1)}.5L{round(x2)}.5 {round(y2)}.5", fill="none", **paint
    )
