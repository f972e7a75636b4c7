"""Convert a notebook to HTML with a live explorer: `--to nbmem`.

The command is `jupyter nbconvert --to nbmem FILE.ipynb`.
"""

from __future__ import annotations

import copy
import re
from html import escape
from typing import TYPE_CHECKING, Any

from nbconvert.exporters import HTMLExporter

from nbmem.views.exports.interactive_page import explorer_script, interactive_report
from nbmem.views.mime_types import DRAWN

if TYPE_CHECKING:
    from pathlib import Path

HTML = "text/html"


class MemoryHTMLExporter(HTMLExporter):  # type: ignore[misc]  # mypy has no types for it
    """nbconvert's HTML page with the explorer's code added.

    A saved notebook must not contain that code. The page contains it once, however many reports
    there are, and not at all without reports. What nbconvert's pages fetch for widgets and formulas
    is fetched if there are any.
    """

    export_from_notebook = "HTML (live GPU memory)"
    """Label in JupyterLab under File, Save and Export Notebook As."""

    def from_notebook_node(
        self, nb: Any, resources: dict[str, Any] | None = None, **options: Any
    ) -> tuple[str, dict[str, Any]]:
        """Convert a notebook without changing it."""
        nb = copy.deepcopy(nb)
        drawn = [(data, mime) for data in _outputs(nb) for mime in DRAWN if mime in data]
        for data, mime in drawn:
            data[HTML] = interactive_report(_text(data.get(HTML, "")), data.pop(mime), mime)
        page, resources = super().from_notebook_node(nb, resources, **options)
        if drawn:
            head, body, tail = page.rpartition("</body>")
            page = (
                f"{head}{explorer_script()}{body}{tail}" if body else f"{page}{explorer_script()}"
            )
        if "widgets" not in nb.metadata:
            page = _unfetched(page, self.require_js_url)
        if not any("$" in _text(c.source) or "\\" in _text(c.source) for c in _prose(nb)):
            page = _unfetched(page, self.mathjax_url)
        return page, resources


def notebook_page(path: Path) -> str:
    """Return the page of a notebook's file."""
    page, _ = MemoryHTMLExporter().from_filename(str(path))
    return str(page)


def _outputs(nb: Any) -> list[Any]:
    return [
        output.data for cell in nb.cells for output in cell.get("outputs", ()) if "data" in output
    ]


def _prose(nb: Any) -> list[Any]:
    return [cell for cell in nb.cells if cell.cell_type == "markdown"]


def _unfetched(page: str, url: str) -> str:
    """Remove the script that a page would fetch from a URL."""
    return re.sub(rf'<script src="{re.escape(escape(url))}">\s*</script>', "", page)


def _text(lines: str | list[str]) -> str:
    """Return a notebook's text as one string; it may be a list of lines."""
    return lines if isinstance(lines, str) else "".join(lines)
