"""Render a report as HTML: a notebook fragment, or a whole page.

The fragment has no script, no <style>, no <svg> and no address but data: an untrusted notebook
retains all of it, and it needs no network. Its tables are those of the text (text_block.py says
why).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmem.core.runtime.fault_isolation import UNGUARDED, Faults
from nbmem.core.units import format_bytes
from nbmem.report.analysis.oom.ranking import ended_by_oom, without_remedies
from nbmem.report.ledger.fallback_text import ledger_lines
from nbmem.views import report_sentences, style
from nbmem.views.charts.card_bar import card_bar
from nbmem.views.charts.timeline import timeline
from nbmem.views.growth import growth_table
from nbmem.views.lines import lines_table
from nbmem.views.markup import Markup, element, escape, join, one_line, with_code
from nbmem.views.notes_html import listed
from nbmem.views.oom_html import render_oom_html
from nbmem.views.rows import ledger_rows
from nbmem.views.text import holdings_table, ledger_table, phases_table
from nbmem.views.text_block import block, with_swatch
from nbmem.views.tips_html import render_tips_html
from nbmem.views.verdict import peak_figures, peak_sentence
from nbmem.views.would_run_on import would_run_html

if TYPE_CHECKING:
    from nbmem.report.model import Report
    from nbmem.views.charts.svg import Picture

_WIDTH = 100
"""Characters in a line of the tables."""
_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 20px auto; max-width: 1260px; padding: 0 16px; background: #ffffff; color: #1b1f24;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (prefers-color-scheme: dark) { body { background: #111111; color: #e3e5e8; } }
"""


def render_html(report: Report, faults: Faults = UNGUARDED) -> str:
    """Write a report as a fragment of HTML.

    Args:
        report: The report.
        faults: Collects faults and leaves out what fails; by default a fault is raised.
    """

    def part(what: str, make: Callable[[], list[Markup]]) -> list[Markup]:
        return faults.part(what, make, [])

    ooms = part("The explanation of the error", lambda: _ooms(report))
    ended = bool(ooms) and faults.part(
        "The place of the explanation",
        lambda: ended_by_oom(report),
        True,  # noqa: FBT003 - the replacement
    )
    parts = [
        *(ooms if ended else []),
        *part("The verdict", lambda: _headline(report)),
        *part("The error", lambda: _error(report)),
        *part("The tiles", lambda: [_tiles(report)]),
        *part("The other cards", lambda: would_run_html(report)),
        *part("The timeline", lambda: _picture(timeline(report))),
        *part("The picture of the card", lambda: _picture(card_bar(report))),
        *([] if ended else ooms),
        *part("The tips", lambda: _tips(report)),
        *part("The growth from step to step", lambda: _table(growth_table(report, _WIDTH))),
        *(part("The table of the ledger", lambda: [_ledger(report)]) or [_bare_ledger(report)]),
        *part("The phases", lambda: _table(phases_table(report))),
        *part("The largest tensors", lambda: _table(holdings_table(report, _WIDTH))),
        *part("The lines of the code", lambda: _table(lines_table(report))),
        *part("The notes", lambda: _notes(report_sentences.notes(report))),
    ]
    # Diffs of notebooks are by line.
    return element("div", join([Markup(f"\n{one}") for one in parts]), style=style.BOX)


def render_page(report: Report) -> str:
    """Write a report as a whole document that needs nothing else."""
    return page(one_line(report.title) or "untitled", render_html(report))


def page(title: str, fragment: str, *, policy: str | None = None) -> str:
    """Wrap an HTML fragment into a whole document.

    Args:
        title: Its title.
        fragment: Its body.
        policy: Its Content-Security-Policy; None for no policy.
    """
    bound = {"http-equiv": "Content-Security-Policy", "content": policy}
    head = element(
        "head",
        element("meta", charset="utf-8"),
        *([element("meta", **bound)] if policy else []),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"nbmem: {title}"),
        element("style", Markup(_PAGE_STYLE)),
    )
    body = element("body", element("main", element("h1", f"nbmem: {title}"), Markup(fragment)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _headline(report: Report) -> list[Markup]:
    source = report_sentences.source(report.peak.at)
    figures = peak_figures(report) + (f", {source}" if source else "")
    return [
        element("div", *with_code(peak_sentence(report)), style=style.VERDICT),
        element("div", figures, style=style.FIGURES),
        element("div", report_sentences.recording(report), style=style.ABOUT),
    ]


def _ledger(report: Report) -> Markup:
    """Return the text's ledger table, with the charts' colours."""
    head, *lines = ledger_table(report, _WIDTH).splitlines()
    rows = ledger_rows(report)
    return block(
        [head, *(with_swatch(row.category, line) for row, line in zip(rows, lines, strict=True))]
    )


def _bare_ledger(report: Report) -> Markup:
    return block(ledger_lines(report.ledger_at_peak, report.ledger_at_end).splitlines())


def _table(text: str) -> list[Markup]:
    return [block(text.splitlines())] if text else []


def _picture(picture: Picture | None) -> list[Markup]:
    return [picture.image(style.PICTURE)] if picture else []


def _tips(report: Report) -> list[Markup]:
    tips = without_remedies(report)
    return [render_tips_html(tips)] if tips else []


def _error(report: Report) -> list[Markup]:
    if not report.error or ended_by_oom(report):
        return []
    return [element("div", f"Ended by {one_line(report.error)}", style=style.ERROR)]


def _ooms(report: Report) -> list[Markup]:
    return [render_oom_html(report.ooms)] if report.ooms else []


def _tiles(report: Report) -> Markup:
    peak = report.peak
    figures: tuple[tuple[str, int | None, str], ...] = (
        ("peak allocated", peak.allocated, "highest bytes in live blocks"),
        ("peak reserved", peak.reserved, "highest bytes that torch held from the driver"),
        ("peak process", peak.process, "highest figure that nvidia-smi shows for this process"),
        ("left at the end", report.ledger_at_end.allocated, "allocated at the end"),
    )
    if report.device.is_host:
        figures = (
            ("peak in tensors", peak.allocated, "highest bytes of the tensors that were seen"),
            ("peak process", peak.process, "highest resident bytes of this process"),
            ("left at the end", report.ledger_at_end.allocated, "in tensors at the end"),
        )
    return element(
        "div",
        *(_tile(name, count, report, what) for name, count, what in figures),
        style=style.TILES,
    )


def _tile(name: str, count: int | None, report: Report, what: str) -> Markup:
    whole = "of the machine" if report.device.is_host else "of the card"
    share = report_sentences.percent(count or 0, report.device.total_bytes)
    share = escape("") if count is None else escape(f"{share} {whole}")
    exact = what if count is None else f"{what}: {count:,} B"
    return element(
        "div",
        element("div", name, style=style.TILE_NAME),
        element("div", format_bytes(count), style=style.TILE_VALUE),
        element("div", share or "the driver does not say", style=style.TILE_NAME),
        title=exact,
        style=style.TILE,
    )


def _notes(found: list[str]) -> list[Markup]:
    if not found:
        return []
    return [listed(found)]
