"""`%nbmem tips`: show all tips of the last report, and their accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
from nbmem.core.units import format_bytes
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle, text_bundle

if TYPE_CHECKING:
    import argparse

    from nbmem.core.freed_memory import Freed
    from nbmem.report.model import Finding, Report

NOTHING = "No tips: nothing in this recording would bring memory back."
FREED = "No tips beside the explanation of the out-of-memory error."
_WHAT = {
    "cache": "the cache",
    "frameworks": "other frameworks' pools",
    "traceback": "the traceback",
    "out": "Out",
}
"""Display texts for the arguments of `%nbmem free`."""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="also those for a card that is nearly full"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="what was predicted, beside what `%%nbmem free` freed",
    )


_PARSER = parser_of("%nbmem tips", _add)


def _run(notebook: Notebook, argument: str) -> None:
    options = _PARSER.read(argument)
    if options.record:
        show_bundle(text_bundle(_record(notebook)))
        return
    show_bundle(_tips_bundle(notebook, everything=options.all))


def _tips_bundle(notebook: Notebook, *, everything: bool) -> dict[str, str]:
    """Return the last report's tips as a MIME bundle.

    Notes below them say what was left out and which tips are muted.
    """
    from nbmem.api.render import read
    from nbmem.report.tips.mutes import muted
    from nbmem.views.mime_bundle import guarded_bundle, html_with, text_with
    from nbmem.views.tips import render_tips
    from nbmem.views.tips_html import render_tips_html

    trace = notebook.last()
    report = trace.report()
    findings = report.findings
    others: tuple[Finding, ...] = ()
    left_out: tuple[str, ...] = ()
    if (everything or not findings) and trace.session is not None:
        more, left_out = read(trace.session, None, everything=True, other_cards=False)
        others = more.findings
    if everything:
        findings = others
    findings = tuple(_measured(finding, notebook.tracer.freed) for finding in findings)
    if not findings:
        bundle = text_bundle(_why_no_tips(report, others))
    else:
        bundle = guarded_bundle(
            "The tips",
            lambda: render_tips(findings, most=None),
            lambda: str(render_tips_html(findings, most=None)),
            lambda: "\n".join(f"{found.high:>20,} B  {found.rule}" for found in findings),
        )
    silent = () if everything else sorted(muted())
    if silent:
        left_out = (*left_out, f"Muted: {', '.join(silent)}. `%nbmem unmute NAME` ends that.")
    return {
        kind: html_with(text, left_out) if kind == "text/html" else text_with(text, left_out)
        for kind, text in bundle.items()
    }


def _why_no_tips(report: Report, others: Sequence[Finding]) -> str:
    """Return why there is no tip, consistent with the rest of the report."""
    from nbmem.views.oom import aftermath

    if report.ooms and (left := aftermath(report.ooms[0])) is not None:
        return f"{FREED} {left}"
    if others:
        largest = max(finding.high for finding in others)
        many = f"{len(others)} tips" if len(others) > 1 else "a tip"
        return (
            "No tips for a card with room. What is left has a price (time, other numbers, a "
            f"restart) or is muted: `%nbmem tips --all` has {many}, up to {format_bytes(largest)}."
        )
    return NOTHING


def _measured(finding: Finding, freed: Iterable[Freed]) -> Finding:
    """Return the finding with the bytes that applying it has freed.

    Unchanged if the tip has not been applied.
    """
    if finding.command is None:
        return finding
    what = " ".join(finding.command.arguments)
    brought = [entry.measured for entry in freed if entry.what == _WHAT.get(what, what)]
    return replace(finding, measured=brought[-1]) if brought else finding


def _record(notebook: Notebook) -> str:
    from nbmem.views.tips import render_record

    return render_record(tuple(notebook.tracer.freed))


COMMAND = MagicCommand(
    "tips",
    "[--all] [--record]",
    "the last report's tips; --all: also those for a full card; --record: how right they were",
    _run,
    options=_PARSER.options,
)
