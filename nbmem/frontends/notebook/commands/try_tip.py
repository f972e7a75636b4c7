"""`%nbmem try`: run the traced cell with the change of one tip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands import estimates as asking
from nbmem.frontends.notebook.commands.base import CompletionRequest, MagicCommand, Notebook

if TYPE_CHECKING:
    from nbmem.report.model import Finding


def _run(notebook: Notebook, argument: str) -> None:
    trace = notebook.last()
    report = trace.report()
    finding = _chosen(report.findings, argument.strip() or "1")
    number = notebook.tracer.kept.number_of(trace)
    if number is None:
        raise UsageError(
            "Cannot try a tip of the last report: it is not of a cell of this notebook. "
            "Trace a cell with %%memtrace, and try a tip of its report."
        )
    from nbmem import estimates
    from nbmem.estimates.programs import programs
    from nbmem.estimates.programs.assignments import made_anew

    names = notebook.shell.user_ns
    cell = asking.cell_numbered(notebook, number)
    own = made_anew(cell.code)
    before = {name: value for name, value in names.items() if name not in own}
    program = programs.cell(cell.code, before, title=cell.title)
    with asking.EstimateProgress(notebook.shell, "try") as progress:
        progress.show(
            estimates.try_finding(finding, report.growth, program, names, tell=progress.add_line)
        )


def _chosen(findings: Sequence[Finding], wanted: str) -> Finding:
    """Return a tip by its number from 1, or the first of a rule.

    Raises:
        UsageError: There is no such tip.
    """
    if wanted.isdecimal() and 1 <= int(wanted) <= len(findings):
        return findings[int(wanted) - 1]
    for finding in findings:
        if finding.rule == wanted:
            return finding
    rules = dict.fromkeys(finding.rule for finding in findings)
    there = f"There are: {', '.join(rules)}." if rules else "It has none."
    raise UsageError(f"Cannot try {wanted!r}: the last report has no such tip. {there}")


def _offers(asked: CompletionRequest) -> Iterable[str]:
    """Return the rules of the last report's tips."""
    last = asked.notebook.tracer.last
    return () if last is None else [finding.rule for finding in last.report().findings]


COMMAND = MagicCommand(
    "try",
    "[N|RULE]",
    "run the traced cell with a tip's change on a virtual card: bytes before and after",
    _run,
    offers=_offers,
)
