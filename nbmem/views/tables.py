"""The tables of the HTML view: the ledger, the phases, the largest holdings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.categories import PROCESS
from nbmem.core.units import format_ms
from nbmem.views import style, wording
from nbmem.views.markup import Markup, element, one_line
from nbmem.views.palette import swatch_style
from nbmem.views.rows import Gap, alike, holdings_title, ledger_rows, peak_row, shorten

if TYPE_CHECKING:
    from nbmem.report import PhaseRow, Report
    from nbmem.views.rows import Alike, Amount, LedgerRow

MOST_HOLDINGS = 30
_BAR = 48


def ledger(report: Report) -> Markup:
    """Every category at the peak beside the end, with the sums that they make."""
    rows = ledger_rows(report)
    scale = max(
        (a.count or 0 for row in rows if row.category in PROCESS for a in (row.peak, row.end)),
        default=0,
    )
    head = element(
        "tr",
        element("th", "category", scope="col", style=style.HEAD_TEXT),
        element("th", "at the peak", scope="col", style=style.HEAD),
        element("td", style=style.HEAD),
        element("th", "at the end", scope="col", style=style.HEAD),
        element("td", style=style.HEAD),
    )
    return _table("Ledger: every byte of the card", head, [_ledger_row(row, scale) for row in rows])


def _ledger_row(row: LedgerRow, scale: int) -> Markup:
    if row.category is None:
        cells = [
            element("th", f"= {row.label}", scope="row", style=style.STRONG_NAME + style.RULED)
        ]
        for amount in (row.peak, row.end):
            figure = style.STRONG_FIGURE + style.RULED
            cells.append(element("td", amount.text, title=_exact(amount), style=figure))
            cells.append(element("td", style=style.TEXT + style.RULED))
        return element("tr", *cells, title=row.meaning)
    swatch = element("span", style=style.SWATCH + swatch_style(row.category))
    cells = [element("th", swatch, row.label, scope="row", style=style.NAME)]
    for amount in (row.peak, row.end):
        cells.append(element("td", amount.text, title=_exact(amount), style=style.FIGURE))
        bar = _bar(row, amount, scale)
        cells.append(element("td", *bar, style=style.BAR_CELL))
    return element("tr", *cells, title=row.meaning)


def _bar(row: LedgerRow, amount: Amount, scale: int) -> list[Markup]:
    if row.category not in PROCESS or not amount.count or not scale:
        return []
    width = max(1, round(_BAR * amount.count / scale))
    return [element("span", style=f"{style.BAR}width:{width}px;{swatch_style(row.category)}")]


def _exact(amount: Amount) -> str | None:
    return None if amount.count is None else f"{amount.count:,} B"


def phases(report: Report) -> list[Markup]:
    """What each phase found, peaked at and left; long loops are shortened."""
    if not report.phases:
        return []
    wanted = peak_row(report)
    scale = max(row.peak_allocated for row in report.phases)
    digits = wording.digits_for(scale)
    head = element(
        "tr",
        element("th", "step", scope="col", style=style.HEAD),
        element("th", "phase", scope="col", style=style.HEAD_TEXT),
        *(
            element("th", name, scope="col", style=style.HEAD, title=what)
            for name, what in (
                ("time", "how long it ran"),
                ("took", "allocated at its end minus at its start"),
                ("peak", "highest allocated bytes inside"),
            )
        ),
        element("th", "left", scope="col", style=style.HEAD, title="allocated at its end"),
        element("th", "reserved", scope="col", style=style.HEAD, title="reserved at its end"),
    )
    body: list[Markup] = []
    step: int | None = -1
    for row in shorten(report):
        if isinstance(row, Gap):
            step = -1
            body.append(_gap(row, digits))
            continue
        body.append(_phase(row, scale, digits, new_step=row.step != step, is_peak=row is wanted))
        step = row.step
    return [
        element(
            "div", _table("Phases (the one with the peak in bold)", head, body), style=style.SCROLL
        )
    ]


def _gap(gap: Gap, digits: int) -> Markup:
    text = f"{gap.text}, {gap.peaks(digits)}"
    return element("tr", element("td", text, colspan=7, style=style.QUIET + style.RULED))


def _phase(row: PhaseRow, scale: int, digits: int, *, new_step: bool, is_peak: bool) -> Markup:
    ruled = style.RULED if new_step else ""
    figure, name = style.FIGURE + ruled, style.NAME + ruled
    if is_peak:
        figure, name = style.STRONG_FIGURE + ruled, style.STRONG_NAME + ruled
    step = str(row.step) if new_step and row.step is not None else ""
    indent = "\N{NO-BREAK SPACE}" * 3 * row.depth
    return element(
        "tr",
        element("td", step, style=figure),
        element("th", indent + one_line(row.name), scope="row", style=name),
        element("td", format_ms(row.t1_ns - row.t0_ns), style=figure),
        element(
            "td",
            wording.in_mib(row.allocated - row.allocated_before, digits, signed=True),
            style=figure,
        ),
        element(
            "td",
            wording.in_mib(row.peak_allocated, digits),
            title=f"{row.peak_allocated:,} B",
            style=figure + style.filled(row.peak_allocated / max(scale, 1)),
        ),
        element("td", wording.in_mib(row.allocated, digits), style=figure),
        element("td", wording.in_mib(row.reserved, digits), style=figure),
    )


def holdings(report: Report) -> list[Markup]:
    """The largest live allocations at the peak, folded."""
    if not report.holdings:
        return []
    shown = alike(report.holdings)[:MOST_HOLDINGS]
    head = element(
        "tr",
        element("th", "requested", scope="col", style=style.HEAD),
        *(
            element("th", name, scope="col", style=style.HEAD_TEXT)
            for name in ("category", "what", "born in", "line")
        ),
    )
    body = [_holding(row) for row in shown]
    summary = holdings_title(shown, report)
    table = _table("Live allocations, largest first", head, body)
    return [
        element(
            "details",
            element("summary", summary, style=style.SUMMARY),
            element("div", table, style=style.SCROLL),
            style=style.DETAILS,
        )
    ]


def _holding(row: Alike) -> Markup:
    held = row.held
    swatch = element("span", style=style.SWATCH + swatch_style(held.category))
    exact = f"{held.requested:,} B asked for, {held.block:,} B taken, each"
    return element(
        "tr",
        element("td", row.size(), title=exact, style=style.FIGURE),
        element("td", swatch, held.category.label, style=style.NAME),
        element("th", held.name or "unnamed", scope="row", style=style.TEXT),
        element("td", held.born_in or "before the recording", style=style.NAME),
        element("td", held.line or "", style=style.TEXT),
    )


def _table(caption: str, head: Markup, body: list[Markup]) -> Markup:
    return element(
        "table",
        element("caption", caption, style=style.CAPTION),
        element("thead", head),
        element("tbody", *body),
        style=style.TABLE,
    )
