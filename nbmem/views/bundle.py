"""All readings of one report; the front end picks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.views.explorer.output import MIME, MISSING, explorer_output
from nbmem.views.html import render_html
from nbmem.views.oom import render_oom
from nbmem.views.oom_html import render_oom_html
from nbmem.views.text import render_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbmem.core.history import CellDelta
    from nbmem.report import Autopsy, Report


def mimebundle(report: Report, cells: Sequence[CellDelta] = ()) -> dict[str, Any]:
    """What a notebook's output holds: the explorer's data, static HTML and plain text.

    Plain text is not a fallback: it is what terminals, diffs and CI see. HTML is what shows where
    nbmem's JupyterLab extension is not: on GitHub, in nbconvert, in other editors.

    Args:
        report: The report.
        cells: The notebook's history, oldest first.
    """
    explorer = explorer_output(report, cells)
    bundle: dict[str, Any] = {
        "text/plain": render_text(report),
        "text/html": render_html(report, *([] if explorer else [MISSING])),
    }
    return bundle | ({MIME: explorer} if explorer else {})


def oom_bundle(ooms: Sequence[Autopsy]) -> dict[str, str]:
    """Why memory ran out, as an output of its own: the explorer draws a report without it."""
    return {"text/plain": render_oom(ooms), "text/html": render_oom_html(ooms)}
