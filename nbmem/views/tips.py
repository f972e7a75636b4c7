"""Write tips as plain text: a report's findings, and their accuracy."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.views.markup import one_line

if TYPE_CHECKING:
    from nbmem.core.freed_memory import Freed
    from nbmem.report.model import Finding

MAX_TIPS = 3
"""Tips in a report; `%nbmem tips` has all."""


def render_tips(
    findings: Sequence[Finding], *, width: int = 100, most: int | None = MAX_TIPS
) -> str:
    """Write findings, the first ones in full; empty if there are none.

    Args:
        findings: In the order in which they are shown.
        width: Characters in a line.
        most: How many; None for all.
    """
    if not findings:
        return ""
    shown = findings[:most]
    lines = [heading(len(findings), len(shown))]
    for finding in shown:
        lines += _finding(finding, width)
    return "\n".join(lines)


def heading(found: int, shown: int) -> str:
    """Return `Tips`, and the command that shows the rest."""
    more = found - shown
    return f"Tips ({more} more: %nbmem tips)" if more else "Tips"


def about(finding: Finding) -> str:
    """Return a finding's ground, what it freed and its explain command.

    For instance `exact; %nbmem explain checkpoint_kept`.
    """
    parts = [finding.ground, f"%nbmem explain {finding.rule}"]
    if finding.measured is not None:
        parts.insert(1, f"it freed {format_bytes(finding.measured)}")
    return "; ".join(parts)


def command(finding: Finding) -> str | None:
    """Return nbmem's command that applies a finding, or None."""
    if finding.command is None:
        return None
    return " ".join(("%nbmem", finding.command.name, *map(one_line, finding.command.arguments)))


def _finding(finding: Finding, width: int) -> list[str]:
    lines = textwrap.wrap(
        one_line(finding.title), width, initial_indent="  * ", subsequent_indent="    "
    )
    text = f"{one_line(finding.evidence)} ({about(finding)})"
    lines += textwrap.wrap(
        text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    typed = command(finding)
    code = [] if finding.code is None else finding.code.splitlines()
    if typed is not None and len(code) <= 1:
        code = [typed]  # an equivalent command, which also reports its effect
    lines += [f"      {one_line(line)}".rstrip() for line in code]
    return lines


def render_record(freed: Sequence[Freed]) -> str:
    """Write what each action was predicted to free, and what it freed."""
    if not freed:
        return (
            "Nothing has been freed through nbmem yet. `%nbmem free` does what a tip says, and "
            "this record keeps what was predicted and what it freed."
        )
    rows = [("freed", "predicted", "measured", "difference")]
    rows += [
        (
            one_line(entry.what),
            format_bytes(entry.predicted),
            format_bytes(entry.measured),
            format_bytes(entry.measured - entry.predicted, signed=True),
        )
        for entry in freed
    ]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    right = sum(entry.predicted == entry.measured for entry in freed)
    lines = [
        "  ".join(
            (f"{what:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(rest, widths[1:], strict=True)))
        )
        for what, *rest in rows
    ]
    return "\n".join([*lines, "", f"{right} of {len(freed)} predictions were exact, to the byte."])
