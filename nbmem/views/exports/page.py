"""The report as an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.files.writing import write_text
from nbmem.views.html import render_page

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.report import Report


def write(report: Report, path: Path) -> None:
    """Write it."""
    write_text(path, render_page(report))
