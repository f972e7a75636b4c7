"""Define the explorer's pictures as Bokeh documents without data.

The front end fills the named sources and follows the page's colours. So a document is a few kB and
equal for every report. tools/figures.py writes them once, into the front end
(labextension/src/explorer/figures.json), and no report contains them. The front end draws only the
models used here (labextension/src/explorer/figures.ts).

A Bokeh document in a notebook is untrusted code: it can contain CustomJS, markup, styles with
addresses, and formulas for which BokehJS fetches MathJax. So these contain no text, and the front
end draws only documents made of the models that it lists. A test compares the list with the models
used here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    Grid,
    LinearAxis,
    Plot,
    Quad,
    Range1d,
    Scatter,
    Segment,
    Span,
    Step,
    Text,
    VAreaStep,
    VBar,
)

from nbmem.core.session.categories import ACTIVE, RESERVED
from nbmem.views.palette import COLOURS, HATCHES, TINT_INK

if TYPE_CHECKING:
    from bokeh.models import Glyph, Range

RED = "#C8553D"
"""The card's limit, as in the static picture."""
_EDGES = {edge: edge for edge in ("left", "right", "bottom", "top")}


@cache
def figures() -> tuple[tuple[str, str], ...]:
    """Return the name and the Bokeh document of each picture.

    Documents are strings, because nbformat would sort their keys.
    """
    makers: tuple[tuple[str, Callable[[], Plot]], ...] = (
        ("timeline", timeline),
        ("holders", holders),
        ("phases", phases),
        ("growth", growth),
        ("pool", pool),
    )
    return tuple(
        (name, json.dumps(json_item(make()), separators=(",", ":"))) for name, make in makers
    )


def timeline() -> Plot:
    """Plot areas stacked by category over time, with strips of phases.

    Lines show reserved and process bytes. The strips show phases, steps and cells.
    """
    plot = _plot("timeline", height=300, x=Range1d(0, 1), y=Range1d(0, 1))
    plot.extra_y_ranges = {"strips": Range1d(0, 1)}
    _axes(plot)
    strips = _source("bands", *_EDGES, "colour", "alpha")
    _draw(
        plot,
        Quad(**_EDGES, fill_color="colour", fill_alpha="alpha", line_color=None),
        strips,
        y_range="strips",
    )
    # BokehJS never ends drawing a stepped area without points.
    areas = _source("areas", "x", "y0", rows=2)
    for category in RESERVED:
        areas.add([0, 0], f"y{category + 1}")
        _draw(
            plot,
            VAreaStep(
                x="x",
                y1=f"y{int(category)}",
                y2=f"y{category + 1}",
                step_mode="after",
                fill_alpha=0.92,
            ),
            areas,
            name=f"area {category.key}",
        )
    lines = _source("lines", "x", "reserved", "process")
    for name, dash in (("reserved", [6, 3]), ("process", [2, 2])):
        step = Step(x="x", y=name, mode="after", line_width=1.4, line_dash=dash)
        _draw(plot, step, lines, name=name)
    texts = _source("labels", "x", "y", "text")
    _draw(plot, _text(TINT_INK, text_align="center"), texts, y_range="strips", name="strip labels")
    _draw(
        plot,
        Scatter(x="x", y="y", size=9, line_color="#FFFFFF", line_width=1.5),
        _source("peak", "x", "y"),
        name="peak",
    )
    plot.add_layout(_span("limit", "width", line_color=RED, line_width=1.5))
    plot.add_layout(_span("moment", "height", line_width=1.5))
    _draw(
        plot,
        Quad(left="left", right="right", bottom=0, top=1, fill_alpha=0.14, line_alpha=0.6),
        _source("brush", "left", "right"),
        y_range="strips",
        name="brush",
    )
    return plot


def holders() -> Plot:
    """Plot holders as rows of boxes that are as wide as their bytes.

    The rows are category, module or variable, and tensor.
    """
    plot = _plot("holders", height=212, x=Range1d(0, 1), y=Range1d(3, 0), left=0)
    _boxes(plot)
    return plot


def pool() -> Plot:
    """Plot segments as bars, tiled by their blocks."""
    plot = _plot("pool", height=300, x=Range1d(0, 1), y=Range1d(1, 0), left=0)
    _boxes(plot)
    return plot


def phases() -> Plot:
    """Plot each phase's memory at its peak, by category, step by step.

    A mark shows what the phase left.
    """
    plot = _plot("phases", height=260, x=Range1d(0, 1), y=Range1d(0, 1))
    _axes(plot)
    bars = _source("bars", "x", "y0")
    for category in ACTIVE:
        bars.add([], f"y{category + 1}")
        bar = VBar(
            x="x", width=0.82, bottom=f"y{int(category)}", top=f"y{category + 1}", line_color=None
        )
        _draw(plot, bar, bars, name=f"bar {category.key}")
    marks = Segment(x0="x0", x1="x1", y0="y", y1="y", line_width=2.5)
    _draw(plot, marks, _source("left", "x0", "x1", "y"), name="left")
    names = _text("colour", text_align="center")
    _draw(plot, names, _source("names", "x", "y", "text", "colour"), name="names")
    return plot


def growth() -> Plot:
    """Plot the peak of each step and what it left."""
    plot = _plot("growth", height=180, x=Range1d(0, 1), y=Range1d(0, 1))
    _axes(plot)
    steps = _source("steps", "x", "peak", "left")
    for name, dash in (("peak", "solid"), ("left", [6, 3])):
        _draw(
            plot,
            Step(x="x", y=name, mode="center", line_width=1.8, line_dash=dash),
            steps,
            name=name,
        )
        _draw(plot, Scatter(x="x", y=name, size=5, line_color=None), steps, name=f"{name} dots")
    return plot


def _plot(name: str, *, height: int, x: Range, y: Range, left: int = 72) -> Plot:
    return Plot(
        name=name,
        x_range=x,
        y_range=y,
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=left,
        min_border_right=8,
        min_border_top=4,
        min_border_bottom=4,
        output_backend="canvas",
    )


def _axis(plot: Plot, place: str) -> None:
    axis = LinearAxis(
        name=f"{place} axis",
        ticker=FixedTicker(name=f"{place} ticker", ticks=[]),
        axis_line_color=None,
        major_label_text_font_size="11px",
        minor_tick_line_color=None,
    )
    plot.add_layout(axis, place)


def _axes(plot: Plot) -> None:
    """Add both axes, and horizontal grid lines at the ticks of the bytes."""
    _axis(plot, "below")
    _axis(plot, "left")
    plot.add_layout(Grid(name="left grid", dimension=1, ticker=plot.left[0].ticker))


def _text(colour: str, **more: str) -> Text:
    paint = {"text_color": colour, "text_baseline": "middle", "text_font_size": "11px"}
    return Text(x="x", y="y", text="text", **paint, **more)


def _boxes(plot: Plot) -> None:
    """Add boxes with a text inside; the front end places both."""
    paint = {"fill_alpha": "alpha", "line_width": 1}
    plain = _source("boxes", *_EDGES, "alpha", "colour")
    _draw(plot, Quad(**_EDGES, **paint, fill_color="colour"), plain, name="boxes")
    for category in RESERVED:
        if category in HATCHES:  # separate glyph: per-box patterns need a canvas for each box
            quad = Quad(
                **_EDGES,
                **paint,
                fill_color=COLOURS[category],
                hatch_color=HATCHES[category],
                hatch_pattern="/",
                hatch_scale=7,
            )
            name = f"boxes {category.key}"
            _draw(plot, quad, _source(name, *_EDGES, "alpha"), name=name)
    _draw(plot, _text("colour"), _source("labels", "x", "y", "text", "colour"), name="labels")
    outline = Quad(**_EDGES, fill_color=None, line_width=2.5)
    _draw(plot, outline, _source("chosen", *_EDGES), name="chosen")


def _source(name: str, *columns: str, rows: int = 0) -> ColumnDataSource:
    return ColumnDataSource(name=f"{name} data", data={column: [0] * rows for column in columns})


def _draw(
    plot: Plot, glyph: Glyph, source: ColumnDataSource, *, name: str = "", y_range: str = "default"
) -> None:
    renderer = plot.add_glyph(source, glyph, y_range_name=y_range)
    renderer.name = name or None


def _span(name: str, dimension: Any, **paint: Any) -> Span:
    return Span(name=name, dimension=dimension, location=0, visible=False, **paint)
