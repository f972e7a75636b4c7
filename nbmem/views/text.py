"""Render the report as plain text, for terminals, diffs and CI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.runtime.fault_isolation import UNGUARDED
from nbmem.core.session.categories import PROCESS
from nbmem.core.units import format_bytes, format_ms
from nbmem.report.analysis.oom.ranking import ended_by_oom, without_remedies
from nbmem.report.ledger.fallback_text import ledger_lines
from nbmem.views import report_sentences
from nbmem.views.growth import growth_table
from nbmem.views.lines import lines_table
from nbmem.views.markup import clipped, one_line, short_path, wrapped
from nbmem.views.oom import render_oom
from nbmem.views.rows import group_holdings, holdings_title, ledger_rows, other_variables
from nbmem.views.steps import Gap, peak_row, shorten
from nbmem.views.tips import render_tips
from nbmem.views.verdict import peak_figures, peak_sentence
from nbmem.views.would_run_on import would_run_line

if TYPE_CHECKING:
    from nbmem.core.runtime.fault_isolation import Faults
    from nbmem.report.model import Holding, PhaseRow, Report
    from nbmem.views.rows import Amount, LedgerRow

MAX_HOLDINGS = 8
_NARROWEST = 72
_LONGEST_PHASE = 24
_TIME = 8
"""Characters of a time, always: a faster run must not shift the other columns."""


def render_text(report: Report, *, width: int = 100, faults: Faults = UNGUARDED) -> str:
    """Write a report: verdict, ledger, tips, phases, holdings and notes.

    Args:
        report: The report.
        width: Characters in a line; tables need at least 72.
        faults: Collects faults and leaves out what fails; by default a fault is raised.
    """
    width, part = max(width, _NARROWEST), faults.part
    ooms = (
        part("The explanation of the error", lambda: render_oom(report.ooms, width), "")
        if report.ooms
        else ""
    )
    ended = bool(ooms) and part("The place of the explanation", lambda: ended_by_oom(report), True)  # noqa: FBT003
    parts = [
        ooms if ended else "",
        part("The verdict", lambda: _head(report, width), ""),
        part("The table of the ledger", lambda: ledger_table(report, width), "")
        or ledger_lines(report.ledger_at_peak, report.ledger_at_end),
        part("The tips", lambda: render_tips(without_remedies(report), width=width), ""),
        part("The growth from step to step", lambda: growth_table(report, width), ""),
        part("The phases", lambda: phases_table(report), ""),
        part("The largest tensors", lambda: holdings_table(report, width), ""),
        part("The lines of the code", lambda: lines_table(report), ""),
        "" if ended else ooms,
        part("The notes", lambda: _notes(report, width), ""),
    ]
    return "\n\n".join(filter(None, parts))


def _notes(report: Report, width: int) -> str:
    notes = report_sentences.notes(report)
    return "\n".join(wrapped(note, width, "- ") for note in notes)


def _head(report: Report, width: int) -> str:
    """Write the verdict and the lines below it: figures, error, recording."""
    source = report_sentences.source(report.peak.at)
    lines = [wrapped(peak_sentence(report), width, rest="  ")]
    figures = peak_figures(report)
    if len(figures) + len(source) + 2 <= width:
        figures, source = f"{figures}, {source}" if source else figures, ""
    lines.append(wrapped(figures, width, rest="  "))
    if source:
        lines.append(wrapped(source, width, "  "))
    if report.error and not ended_by_oom(report):
        lines.append(wrapped(f"Ended by {one_line(report.error)}", width, rest="  "))
    lines.append(wrapped(report_sentences.recording(report), width, rest="  "))
    if line := would_run_line(report):
        lines.append(wrapped(line, width, rest="  "))
    return "\n".join(lines)


def ledger_table(report: Report, width: int) -> str:
    """Write every category at the peak beside the end.

    A line of column titles comes first, then `ledger_rows` in order.
    """
    rows = ledger_rows(report)
    labels = max(len(row.label) + 2 * row.part for row in rows) + 2
    figures = max(len(row.peak.text) for row in rows), max(len(row.end.text) for row in rows)
    bar = min(18, (width - labels - sum(figures) - 8) // 2)
    with_bar = [row for row in rows if _has_bar(row)]
    scale = max((a.count or 0 for row in with_bar for a in (row.peak, row.end)), default=0)

    def cells(row: LedgerRow, amount: Amount, figure: int) -> str:
        drawn = _bar(amount.count or 0, scale, bar) if _has_bar(row) else ""
        return f"{amount.text:>{figure}}  {drawn:<{bar}}"

    lines = [
        "  ".join(
            (
                f"{'Ledger':<{labels}}",
                f"{'at the peak':>{figures[0]}}",
                " " * bar,
                f"{'at the end':>{figures[1]}}",
            )
        )
    ]
    for row in rows:
        name = f"{'    ' if row.part else '= ' if row.category is None else '  '}{row.label}"
        lines.append(
            f"{name:<{labels}}  {cells(row, row.peak, figures[0])}  "
            f"{cells(row, row.end, figures[1])}".rstrip()
        )
    return "\n".join(lines)


def _has_bar(row: LedgerRow) -> bool:
    # The free bytes of a large card would shrink every other bar to nothing.
    return row.category is not None and row.category in PROCESS


def _bar(count: int, scale: int, width: int) -> str:
    if count <= 0 or scale <= 0:
        return ""
    # A dot for an amount that is too small to draw.
    return "#" * round(width * count / scale) or "."


def phases_table(report: Report) -> str:
    """Write each phase's time, its change, its peak and what it left.

    Empty if there are none.
    """
    if not report.phases:
        return ""
    wanted = peak_row(report)
    table: list[tuple[str, ...]] = [("Phase", "step", "time", "took", "peak", "left", "reserved")]
    # Lines outside the columns, by the row of the table that they follow.
    marks: dict[int, str] = {}
    gaps: dict[int, str] = {}
    for row in shorten(report):
        if isinstance(row, Gap):
            gaps[len(table)] = f"  ... {row.text}, {row.peaks()} ..."
            continue
        if row is wanted:
            marks[len(table)] = "  <- peak"
        table.append(_phase(row))
    if report.device.is_host:  # host memory has no reserved bytes
        table = [row[:-1] for row in table]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines: list[str] = []
    for index, (name, *figures) in enumerate(table):
        if index in gaps:
            lines.append(gaps[index])
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join((f"{name:<{widths[0]}}", *cells)) + marks.get(index, ""))
    if len(table) in gaps:
        lines.append(gaps[len(table)])
    return "\n".join(lines)


def _phase(row: PhaseRow) -> tuple[str, ...]:
    return (
        "  " * row.depth + clipped(one_line(row.name), _LONGEST_PHASE),
        "" if row.step is None else str(row.step),
        f"{format_ms(row.t1_ns - row.t0_ns):>{_TIME}}",
        format_bytes(row.allocated - row.allocated_before, signed=True),
        format_bytes(row.peak_allocated),
        format_bytes(row.allocated),
        format_bytes(row.reserved),
    )


def holdings_table(report: Report, width: int) -> str:
    """Write the largest live allocations at the peak, folded.

    Empty if there are none.
    """
    if not report.holdings:
        return ""
    shown = group_holdings(report.holdings)[:MAX_HOLDINGS]
    size = max(len(row.size()) for row in shown)
    kind = max(len(row.held.category.label) for row in shown)
    lines = [holdings_title(shown, report)]
    lines += [
        f"  {row.size():>{size}}  {row.held.category.label:<{kind}}  "
        f"{_origin(row.held, max(24, width - size - kind - 6))}"
        for row in shown
    ]
    return "\n".join(lines)


def _origin(held: Holding, width: int) -> str:
    """Return a holding's name, and its phase and line if they have room.

    The name is clipped if necessary.
    """
    name = one_line(held.name or "unnamed")
    shorter = (short_path(name, most) for most in range(48, 36, -1))
    text = next((one for one in shorter if len(one) <= width), clipped(short_path(name, 37), width))
    born = f"born in {held.born_in}" if held.born_in else ""
    rest = (other_variables(held), born, held.line or "")
    for part in filter(None, map(one_line, rest)):
        if len(text) + len(part) + 2 <= width:
            text += f", {part}"
    return text
