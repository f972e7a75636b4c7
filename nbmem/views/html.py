"""The report as HTML: a fragment for a notebook's output, and a page that stands alone.

The fragment has no script, no <style>, no <svg> and no address but data: an untrusted notebook
keeps all of it, and it needs no network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views import style, tables, wording
from nbmem.views.charts.card import card_bar
from nbmem.views.charts.timeline import timeline
from nbmem.views.markup import Markup, element, escape, one_line
from nbmem.views.oom import oom_ended
from nbmem.views.oom_html import render_oom_html
from nbmem.views.tips_html import render_tips_html

if TYPE_CHECKING:
    from nbmem.report import Report

_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 20px auto; max-width: 1260px; padding: 0 16px; background: #ffffff; color: #1b1f24;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { body { background: #111111; color: #e3e5e8; } }
"""


def render_html(report: Report, *notes: str) -> str:
    """Write a report as a fragment of HTML.

    Args:
        report: The report.
        *notes: Sentences to add to its own.
    """
    curves = timeline(report)
    pictures = [picture.image(style.PICTURE) for picture in (curves, card_bar(report)) if picture]
    return element(
        "div",
        *(_ooms(report) if oom_ended(report) else []),
        element("div", _headline(report), style=style.VERDICT),
        element("div", wording.recording(report), style=style.ABOUT),
        *_error(report),
        _tiles(report),
        element(
            "div",
            element("div", *pictures, style=style.PICTURES),
            element("div", tables.ledger(report), style=style.TABLES),
            style=style.COLUMNS,
        ),
        *([] if oom_ended(report) else _ooms(report)),
        *([render_tips_html(report.findings)] if report.findings else []),
        *tables.phases(report),
        *tables.holdings(report),
        *_notes([*wording.notes(report), *notes]),
        style=style.BOX,
    )


def render_page(report: Report) -> str:
    """Write a report as a whole document that needs nothing else."""
    return page(one_line(report.title) or "untitled", render_html(report))


def page(title: str, fragment: str) -> str:
    """A fragment as a whole document."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"nbmem: {title}"),
        element("style", Markup(_PAGE_STYLE)),
    )
    body = element("body", Markup(fragment))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _headline(report: Report) -> str:
    source = wording.source(report.peak.at)
    return wording.verdict(report) + (f", {source}" if source else "")


def _error(report: Report) -> list[Markup]:
    if not report.error or oom_ended(report):
        return []
    return [element("div", f"Ended by {one_line(report.error)}", style=style.ERROR)]


def _ooms(report: Report) -> list[Markup]:
    return [render_oom_html(report.ooms)] if report.ooms else []


def _tiles(report: Report) -> Markup:
    peak, total = report.peak, report.device.total_bytes
    figures = (
        ("peak allocated", peak.allocated, "highest bytes in live blocks"),
        ("peak reserved", peak.reserved, "highest bytes that torch held from the driver"),
        ("peak process", peak.process, "highest figure that nvidia-smi shows for this process"),
        ("left at the end", report.ledger_at_end.allocated, "allocated at the end"),
    )
    return element(
        "div",
        *(_tile(name, count, total, what) for name, count, what in figures),
        style=style.TILES,
    )


def _tile(name: str, count: int | None, total: int, what: str) -> Markup:
    share = escape("") if count is None else escape(f"{wording.percent(count, total)} of the card")
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
    return [element("ul", *(element("li", note) for note in found), style=style.NOTES)]
