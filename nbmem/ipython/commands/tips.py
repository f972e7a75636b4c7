"""`%nbmem tips`: all advice of the last report, and how right nbmem has been."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.ipython.commands.base import Command, text_bundle
from nbmem.ipython.tracer import show_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook

NOTHING = "No tips: nothing in this recording would bring memory back."
_FLAGS = {"--all", "--record"}


def _run(notebook: Notebook, argument: str) -> None:
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
    if not findings:
        more = "" if "--all" in words else " `%nbmem tips --all` asks also what a full card needs."
        show_bundle(text_bundle(NOTHING + more))
        return
    show_bundle(
        {
            "text/plain": render_tips(findings, most=None),
            "text/html": str(render_tips_html(findings, most=None)),
        }
    )


def _record(notebook: Notebook) -> str:
    from nbmem.views.tips import render_record

    return render_record(tuple(getattr(notebook.tracer, "freed", ())))


COMMAND = Command(
    "tips",
    "[--all] [--record]",
    "the last report's tips; --all: also those for a full card; --record: how right they were",
    _run,
)
