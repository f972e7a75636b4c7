"""Render a report in every form; the front end picks one.

Each form is made under a separate fault guard.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.fault_isolation import UNGUARDED, Faults
from nbmem.views.explorer import MIME
from nbmem.views.explorer.size_limit import MAX_CHARACTERS, saved_output
from nbmem.views.history import (
    render_history,
    render_history_html,
    render_host_history,
    render_host_history_html,
)
from nbmem.views.html import render_html
from nbmem.views.mime_types import OOM_MIME
from nbmem.views.oom import render_oom
from nbmem.views.oom_data import oom_data
from nbmem.views.oom_html import render_oom_html
from nbmem.views.text import render_text

if TYPE_CHECKING:
    from nbmem.core.session.cell_delta import CellDelta, HostDelta
    from nbmem.report.model import OomReport, Report

TEXT, HTML = "text/plain", "text/html"
WIDTH = 100
SAVED = 32_000
"""Characters of a report in a notebook's file without its picture: the explorer's data may use what
text and tables leave."""
_PICTURE = re.compile(r"data:image/svg\+xml[^\"]*")


def mimebundle(
    report: Report, cells: Sequence[CellDelta] = (), faults: Faults = UNGUARDED
) -> dict[str, Any]:
    """Return a report as explorer data, static HTML and plain text.

    Plain text is not a fallback: terminals, diffs and CI show it. HTML is shown where nbmem's
    JupyterLab extension is missing: on GitHub, in nbconvert, in other editors.

    Args:
        report: The report.
        cells: The notebook's history, oldest first.
        faults: Collects faults and leaves out what fails, if necessary a whole form; the other
            forms then report it. By default a fault is raised.
    """
    html = faults.part(
        "The picture with its tables", lambda: render_html(report, faults=faults), None
    )
    text = faults.part("The text", lambda: render_text(report, faults=faults), None)
    # Last, since it includes the other forms' notes; they include its own.
    complete = replace(report, notes=(*report.notes, *faults.notes))
    room = min(MAX_CHARACTERS, SAVED - len(text or "") - len(_PICTURE.sub("", html or "")))
    explorer = faults.part(
        "The interactive view", lambda: saved_output(complete, cells, room), None
    )
    bundle: dict[str, Any] = {}
    if text is not None:
        bundle[TEXT] = text_with(text, faults.notes)
    if html is not None:
        bundle[HTML] = html_with(html, faults.notes)
    return bundle | ({MIME: explorer} if explorer else {})


def oom_bundle(ooms: Sequence[OomReport], *, traced: bool = True) -> dict[str, Any]:
    """Return the explanation of an out-of-memory error as a MIME bundle.

    It is a separate output: the explorer draws a report without it. JupyterLab's extension draws
    a card with buttons, behind which it folds the traceback.
    """
    bundle: dict[str, Any] = guarded_bundle(
        "The explanation of the error",
        lambda: render_oom(ooms),
        lambda: render_oom_html(ooms),
        lambda: _plain_oom(ooms[0]),
    )
    card = Faults().part("The card of the error", lambda: oom_data(ooms, traced=traced), None)
    return bundle if card is None else bundle | {OOM_MIME: card}


def history_bundle(rows: Sequence[CellDelta], of_host: Sequence[HostDelta] = ()) -> dict[str, str]:
    """Return the table of the cells and what they left, as a MIME bundle.

    It shows the card, or the host if no cell used a card.
    """
    if not rows and of_host:
        return guarded_bundle(
            "The table of the cells",
            lambda: render_host_history(of_host),
            lambda: render_host_history_html(of_host),
            lambda: "\n".join(f"{row.process_after:>20,} B after a cell" for row in of_host),
        )
    return guarded_bundle(
        "The table of the cells",
        lambda: render_history(rows),
        lambda: render_history_html(rows),
        lambda: "\n".join(f"{row.allocated_after:>20,} B allocated after a cell" for row in rows),
    )


def guarded_bundle(
    what: str,
    text: Callable[[], str],
    html: Callable[[], str],
    plain: Callable[[], str],
) -> dict[str, str]:
    """Make text and HTML of one thing, each under its own fault guard.

    Args:
        what: Its name in a note, "The table".
        text: Makes it as text.
        html: Makes it as HTML; if that fails, the text is used alone.
        plain: Makes a replacement for the text: figures, with very little code.
    """
    faults = Faults()
    pictured = faults.part(f"{what} as HTML", html, None)
    written = faults.part(what, text, None)
    if written is None:
        written = faults.part("Its figures", plain, "")
    bundle = {TEXT: text_with(written, faults.notes)}
    if pictured is not None:
        bundle[HTML] = html_with(pictured, faults.notes)
    return bundle


def text_with(text: str, notes: Sequence[str]) -> str:
    """Add notes below a text."""
    wrapped = [
        textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ") for note in notes
    ]
    return "\n\n".join(filter(None, (text, "\n".join(wrapped))))


def html_with(html: str, notes: Sequence[str]) -> str:
    """Add notes below an HTML fragment."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"{html}<ul>{items}</ul>" if items else html


def _plain_oom(main_error: OomReport) -> str:
    figures = (
        ("asked for", main_error.asked or main_error.wanted),
        ("free on the card", main_error.free),
    )
    known = [f"  {count:>20,}  {name}" for name, count in figures if count is not None]
    return "\n".join(("Out of memory", *known))
