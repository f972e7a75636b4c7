"""Export the report as an HTML page with the explorer, without network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.files.atomic_write import write_text
from nbmem.report.analysis.oom.ranking import ended_by_oom
from nbmem.views.explorer import explorer_output
from nbmem.views.exports.interactive_page import OFFLINE, explorer_script, interactive_report
from nbmem.views.html import page, render_html
from nbmem.views.markup import Markup, one_line
from nbmem.views.mime_types import OOM_MIME
from nbmem.views.oom import without_ooms
from nbmem.views.oom_data import oom_data
from nbmem.views.oom_html import render_oom_html

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.report.model import Report


def write(report: Report, path: Path) -> None:
    """Write a report as a page that needs no other file."""
    write_text(path, explorer_page(report))


def explorer_page(report: Report) -> str:
    """Return the page: the out-of-memory explanation and the explorer."""
    why, shortened = Markup(""), without_ooms(report)
    if report.ooms:
        error = report.error if ended_by_oom(report) else None
        card = oom_data(report.ooms, error)
        why = interactive_report(render_oom_html(report.ooms), card, OOM_MIME)
    body = (
        why
        + interactive_report(render_html(shortened), explorer_output(shortened))
        + explorer_script()
    )
    return page(one_line(report.title) or "untitled", body, policy=OFFLINE)
