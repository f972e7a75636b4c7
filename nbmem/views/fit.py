"""Render the result of `fit` ("will it fit") as text and HTML."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.core.units import format_bytes
from nbmem.views import style
from nbmem.views.charts.growth import growth
from nbmem.views.exports.interactive_page import explorer_script, interactive_report
from nbmem.views.fit_data import fit_data
from nbmem.views.grid import Grid, TableCell, cells
from nbmem.views.markup import Markup, clipped, element, with_code
from nbmem.views.mime_types import FIT_MIME
from nbmem.views.notes_html import listed

if TYPE_CHECKING:
    from nbmem.report.estimate_results import Fit, Part, Probe

_BAR = 16
_CLOSE = 0.04
"""Runs whose values differ by less than this part are shown once."""
_ENDED = 48
"""Characters of an error in the table; the sentences above contain more of it."""


def render_text(fit: Fit) -> str:
    """Render the result for a terminal."""
    blocks = ["\n".join(fit.sentences)]
    if fit.total is not None:
        blocks += [formula(fit), _parts(fit).text()]
    blocks.append(_probes(fit, bars=True).text())
    return "\n\n".join(blocks)


def render_html(fit: Fit) -> str:
    """Render the result for a notebook's output."""
    picture = growth(fit)
    verdict, *rest = fit.sentences
    left = [picture.image(style.CHART)] if picture else []
    right: list[Markup] = []
    if fit.total is not None:
        left.append(element("div", formula(fit), style=style.FORMULA))
        right.append(_parts(fit).html())
    right.append(_probes(fit, bars=False).html())
    return element(
        "div",
        element("div", *with_code(verdict), style=style.VERDICT),
        element("div", f"{fit.title}, estimated on a virtual card", style=style.ABOUT),
        listed(rest),
        element(
            "div",
            element("div", *left, style=style.CHARTS),
            element("div", *right, style=style.TABLES),
            style=style.COLUMNS,
        ),
        style=style.BOX,
    )


def render_interactive(fit: Fit) -> str:
    """Render the result for a page: the value can be dragged on a chart."""
    still, data = render_html(fit), chart_data(fit)
    return still if data is None else interactive_report(still, data, FIT_MIME) + explorer_script()


def chart_data(fit: Fit) -> dict[str, Any] | None:
    """Return the data of the chart; None where nothing can be drawn."""
    runs = _probes(fit, bars=True)
    tables = ((runs.title, replace(runs, title="").text()), ("Formula", formula(fit)))
    return fit_data(fit, tables)


def formula(fit: Fit) -> str:
    """Return the peak's formula: model + batch x sample.

    It has this program's figures. Empty if no line was fitted.
    """
    total = fit.total
    if total is None:
        return ""
    square = ""
    if total.square:
        square = f" + {fit.variable}^2 x {_bytes(total.square)}"
    off = total.residual
    fixed = f"{_bytes(total.fixed)} + "
    if total.fixed < 0:  # memory cannot be negative: this is the line's error
        fixed, off = "", off - total.fixed
    return (
        f"peak allocated = {fixed}{fit.variable} x {_bytes(total.each)}{square}"
        f", to within {_bytes(off)}{_beside(fit)}"
    )


def _beside(fit: Fit) -> str:
    """Return what the process takes beside the formula's bytes, as an end."""
    at = _answer(fit)
    top = next((p for p in fit.probes if p.value == at and p.fits), None)
    if top is None:
        return ""
    beside = _bytes(top.process - top.allocated)
    return f"; with {at:,} the process takes {beside} more, for torch's cache and the context"


def _answer(fit: Fit) -> int:
    """Return the value to use: the largest that always fits, if any."""
    return next((v for v in (fit.safe, fit.best) if v is not None), fit.low)


def _bytes(count: float) -> str:
    return format_bytes(round(count))


def _parts(fit: Fit) -> Grid:
    at = _answer(fit)
    total = fit.total
    assert total is not None  # noqa: S101 - the callers have checked it
    top = next((p for p in fit.probes if p.value == at and p.ran), None)
    held = {part.name: round(part.at(at)) for part in (*fit.parts, total)}
    if top is not None:  # as it was; the lines pass by it
        held = {part.name: top.held.get(part.name, 0) for part in fit.parts}
        held[total.name] = top.allocated
    rows = sorted((p for p in fit.parts if held[p.name]), key=lambda p: -held[p.name])
    return Grid(
        title="What it is made of",
        head=("", "always", f"per {fit.variable}", f"at {at:,}"),
        rows=tuple(_part(p, held[p.name], held[total.name]) for p in (*rows, total)),
    )


def _part(part: Part, held: int, whole: int) -> tuple[TableCell, ...]:
    last = part.name == "allocated"
    each = _bytes(part.each) + (f" + {_bytes(part.square)} x it" if part.square else "")
    if round(part.each) < 0:
        each = ""
    return (
        TableCell(text="= allocated" if last else part.name, strong=last),
        # A line through values with jumps, such as rounding, may begin below 0: this is no amount.
        TableCell(
            text=_bytes(part.fixed) if round(part.fixed) >= 0 else "",
            exact=f"{part.fixed:,.0f} B",
            strong=last,
        ),
        TableCell(text=each, exact=f"{part.each:,.1f} B", strong=last),
        TableCell(
            text=format_bytes(held),
            exact=f"{held:,} B; the line is off by at most {part.residual:,.0f} B",
            share=0 if last else held / max(whole, 1),
            strong=last,
        ),
    )


def _probes(fit: Fit, *, bars: bool) -> Grid:
    head = (fit.variable, "allocated", "reserved", "process", "peak in", "fits")
    shown = _without_close_runs(fit)
    runs = len(fit.probes)
    title = f"{runs} run{'s' * (runs != 1)} on a virtual {fit.card.name}"
    close = len(fit.probes) - len(shown)
    if close:
        title += f" ({close} that lie close to one of these left out)"
    if any(p.ran and not p.fits for p in shown):
        title += "; what does not fit, as on an endless card"
    rows = [_probe(p, fit, bars=bars) for p in shown]
    return Grid(
        title=title,
        head=head,
        rows=tuple(rows),
        left=frozenset({4, 5}),
    )


def _without_close_runs(fit: Fit) -> list[Probe]:
    """Return the runs without those that lie close to another one."""
    kept = [p for p in fit.probes if p.value in {fit.safe, fit.best, fit.limit}]
    for probe in fit.probes:
        if all(abs((probe.value or 0) - (k.value or 0)) > _CLOSE * (k.value or 0) for k in kept):
            kept.append(probe)
    return sorted(kept, key=lambda p: p.value or 0)


def _probe(probe: Probe, fit: Fit, *, bars: bool) -> tuple[TableCell, ...]:
    strong = probe.value == _answer(fit)
    if not probe.ran:
        return cells(f"{probe.value:,}", "", "", "", "", clipped(f"fails: {probe.failure}", _ENDED))
    share = min(probe.need / max(fit.card.total, 1), 1.0)
    end = "yes" if probe.fits else "no"
    if probe.fits and (fit.safe is None or (probe.value or 0) > fit.safe):
        end = "by luck"
    if bars:
        end = f"{end:<7}  {'#' * max(1, round(share * _BAR))}"
    return (
        TableCell(text=f"{probe.value:,}", strong=strong),
        TableCell(
            text=format_bytes(probe.allocated), exact=f"{probe.allocated:,} B", strong=strong
        ),
        TableCell(text=format_bytes(probe.reserved), exact=f"{probe.reserved:,} B", strong=strong),
        TableCell(
            text=format_bytes(probe.need), exact=f"{probe.need:,} B", share=share, strong=strong
        ),
        TableCell(text=probe.phase or "", strong=strong),
        TableCell(text=end, strong=strong),
    )
