"""`%nbmem tips`: all advice of the last report, and how right nbmem has been."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.ipython.commands.base import Command, text_bundle
from nbmem.ipython.showing import show_bundle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbmem.core.freed import Freed
    from nbmem.ipython.commands.base import Notebook
    from nbmem.report import Finding

NOTHING = "No tips: nothing in this recording would bring memory back."
_FLAGS = {"--all", "--record"}
_WHAT = {"cache": "the cache", "traceback": "the traceback", "out": "Out"}
"""What the record calls the words of `%nbmem free`."""


def _run(notebook: Notebook, argument: str) -> None:
    from nbmem.core.mutes import muted
    from nbmem.views.tips import render_tips
    from nbmem.views.tips_html import render_tips_html

    words = set(argument.split())
    if words - _FLAGS:
        raise UsageError(
            f"%nbmem tips takes --all or --record; {argument!r} was not understood. "
            "`%nbmem explain NAME` says what one tip means."
        )
    if "--record" in words:
        show_bundle(text_bundle(_record(notebook)))
        return
    trace = notebook.last()
    findings = trace.all_tips() if "--all" in words else trace.report().findings
    findings = tuple(_measured(finding, notebook.tracer.freed) for finding in findings)
    if findings:
        show_bundle(
            {
                "text/plain": render_tips(findings, most=None),
                "text/html": str(render_tips_html(findings, most=None)),
            }
        )
    else:
        more = "" if "--all" in words else " `%nbmem tips --all` asks also what a full card needs."
        show_bundle(text_bundle(NOTHING + more))
    if "--all" not in words and (silent := sorted(muted())):
        show_bundle(text_bundle(f"Muted: {', '.join(silent)}. `%nbmem unmute NAME` ends that."))


def _measured(finding: Finding, freed: Iterable[Freed]) -> Finding:
    """The finding, with what it brought where it has been applied since."""
    if finding.command is None:
        return finding
    what = " ".join(finding.command.arguments)
    brought = [entry.measured for entry in freed if entry.what == _WHAT.get(what, what)]
    return replace(finding, measured=brought[-1]) if brought else finding


def _record(notebook: Notebook) -> str:
    from nbmem.views.tips import render_record

    return render_record(tuple(notebook.tracer.freed))


COMMAND = Command(
    "tips",
    "[--all] [--record]",
    "the last report's tips; --all: also those for a full card; --record: how right they were",
    _run,
)
