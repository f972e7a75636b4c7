"""Explain an out-of-memory error as text, in words that HTML shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.session.categories import CARD, Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.oom.ranking import ended_by_oom, without_remedies
from nbmem.views import report_sentences
from nbmem.views.markup import one_line, wrapped

if TYPE_CHECKING:
    from nbmem.report.model import Finding, HeldGroup, OomReport, Report

_GROUNDS = {
    "exact": "counted",
    "simulated": "tried in the simulator",
    "estimated": "estimated, then tried in the simulator",
}
HOLDERS = "Largest holders, by requested bytes"
_MAX_ELSEWHERE = 5


def without_ooms(report: Report) -> Report:
    """Return the report without its out-of-memory errors.

    The explanation is shown beside it, so that each error and remedy is reported once.
    """
    error = None if ended_by_oom(report) else report.error
    return replace(
        report,
        ooms=(),
        error=error,
        ran_out=report.ran_out or ended_by_oom(report),
        findings=without_remedies(report),
    )


def without_commands(report: Report) -> Report:
    """Return the report of a process that has ended, or is no notebook.

    Nobody can type nbmem's commands there.
    """

    def plain(oom: OomReport) -> OomReport:
        remedies = tuple(replace(remedy, command=None) for remedy in oom.remedies)
        return replace(oom, command=None, remedies=remedies)

    shown_in_oom = [remedy for oom in report.ooms for remedy in oom.remedies]
    findings = tuple(
        replace(found, command=None) if found in shown_in_oom else found
        for found in report.findings
    )
    return replace(report, findings=findings, ooms=tuple(map(plain, report.ooms)))


def title(oom: OomReport) -> str:
    """Return what happened: the request, what was free, and where.

    For instance `Ran out of memory: 1.65 GiB asked for, 281.0 MiB free, at train.py:12`.
    """
    asked = oom.asked or oom.wanted
    head = "An out-of-memory error was caught" if oom.caught else "Ran out of memory"
    sizes = [
        f"{format_bytes(count)} {what}"
        for count, what in ((asked, "asked for"), (oom.free, "free"))
        if count is not None
    ]
    where = place(oom)
    if not sizes:
        return f"{head}{where}"
    return f"{head}: {', '.join(sizes)}{',' if where else ''}{where}"


def place(oom: OomReport) -> str:
    """Return where an error happened; empty if nothing is known.

    For instance ` at train.py:12, in model.conv1 (Conv2d), forward, step 3`.
    """
    parts = [
        f"at {one_line(oom.at.line)}" if oom.at.line else None,
        f"in {one_line(oom.layer)}" if oom.layer else None,
        f"in the node {one_line(oom.operator)}" if oom.operator else None,
        report_sentences.phase_and_step(oom.at.phase, oom.at.step),
        f"thread {one_line(oom.thread)}" if oom.thread else None,
    ]
    known = ", ".join(part for part in parts if part)
    return f" {known}" if known else ""


def figures(oom: OomReport) -> list[tuple[str, int | None, str]]:
    """Return the known figures of the moment: name, bytes, meaning."""
    a = oom
    cached = None if a.reserved is None or a.allocated is None else a.reserved - a.allocated
    rest = "all of it" if not a.pooled else "the rest"
    rows = [
        ("asked for", a.asked or a.wanted, "the block that the line asked for"),
        ("free on the card", a.free, "after torch had given back what it could"),
        ("given back first", a.given_back or None, "cached segments that torch itself gave up"),
        ("allocated", a.allocated, "in live tensors"),
        ("cached", cached, f"held by torch beyond that, {rest} in pieces between live tensors"),
        ("in private pools", a.pooled or None, "of the cache, free only for CUDA graphs of theirs"),
        ("largest free piece", a.largest, "of the cache, where the request may go"),
        ("allowed", a.limit, "set by a memory fraction"),
        ("other processes", a.others or None, "on the same card"),
    ]
    return [(name, count, what) for name, count, what in rows if count is not None]


def ledger(oom: OomReport) -> list[tuple[Category, str, int]]:
    """Return the categories that the card held: category, name, bytes.

    Empty categories are left out.
    """
    held = oom.ledger
    if held is None:
        return []
    return [(c, report_sentences.label(c, held), held[c]) for c in CARD if held[c]]


def holder(held: HeldGroup) -> str:
    """Return the name of a group: `weights: model, 40 tensors`."""
    count = "1 tensor" if held.count == 1 else f"{held.count} tensors"
    kept = ", kept from an earlier step" if held.older else ""
    kind = "" if held.category is None else f"{held.category.label}: "
    return one_line(f"{kind}{held.name or held.line or 'unnamed'}, {count}{kept}")


def remedies_title(oom: OomReport) -> str:
    """Return what the remedies have in common."""
    return "Would have sufficed" if oom.caught else "What to do, the best first"


def ground(remedy: Finding) -> str:
    """Return how a remedy's figure is known."""
    return _GROUNDS[remedy.ground]


def commands(remedy: Finding) -> str | None:
    """Return the command or the code that applies a remedy.

    nbmem's own command comes first. None if there is neither.
    """
    if remedy.command is not None:
        return " ".join(("%nbmem", remedy.command.name, *remedy.command.arguments))
    return remedy.code


def aftermath(oom: OomReport) -> str | None:
    """Return what the failure left behind, and the command that frees it.

    None if there is no such command.
    """
    if oom.command is None:
        return None
    typed = " ".join(("%nbmem", oom.command.name, *oom.command.arguments))
    if oom.left:
        return f"The failure keeps {format_bytes(oom.left)} alive: {typed} gives it back."
    return f"What its frames hold stays allocated until {typed}."


def other_places(others: Sequence[OomReport]) -> list[str]:
    """Return one line for each place at which more errors were caught."""
    counts = Counter(place(other) for other in others)
    found = [
        f"{'Once' if count == 1 else f'{count} times'}{where or ', somewhere'}"
        for where, count in counts.most_common(_MAX_ELSEWHERE)
    ]
    if len(counts) > _MAX_ELSEWHERE:
        found.append(f"and at {len(counts) - _MAX_ELSEWHERE} more places")
    return found


def render_oom(ooms: Sequence[OomReport], width: int = 100) -> str:
    """Write a recording's errors: the main one in full, places of others."""
    main_error, *others = ooms
    parts = [wrapped(title(main_error), width), wrapped(main_error.reason, width, "  ")]
    if main_error.remedies:
        parts.append(remedies_title(main_error))
        for number, remedy in enumerate(main_error.remedies, 1):
            text = f"{remedy.title} ({ground(remedy)}). {remedy.evidence}"
            parts.append(wrapped(text, width, f"  {number}. ", "     "))
            if typed := commands(remedy):
                parts += [f"     {one_line(line)}".rstrip() for line in typed.splitlines()]
    rows = figures(main_error)
    names = max(len(name) for name, _, _ in rows) if rows else 0
    sizes = max(len(format_bytes(count)) for _, count, _ in rows) if rows else 0
    parts += [
        f"  {name:<{names}}  {format_bytes(count):>{sizes}}  {what}" for name, count, what in rows
    ]
    if held := ledger(main_error):
        parts.append(_table("The card at that moment", [(name, count) for _, name, count in held]))
    if main_error.holders:
        lines = [(holder(held), held.requested) for held in main_error.holders]
        parts.append(_table(HOLDERS, lines))
    if after := aftermath(main_error):
        parts.append(wrapped(after, width))
    parts += [wrapped(note, width, "- ", "  ") for note in main_error.notes]
    if others:
        parts.append("More out-of-memory errors were caught")
        parts += [wrapped(line, width, "  ", "    ") for line in other_places(others)]
    return "\n".join(parts)


def interrupted(*, line: str | None, layer: str | None, grown: int, left: int) -> str:
    """Explain what an interrupted cell (Ctrl-C) leaves on the card.

    Args:
        line: The user's line that was running.
        layer: The module that was running.
        grown: Bytes allocated now beyond those before the cell.
        left: Bytes that only its traceback holds.
    """
    parts = [f"at {line}" if line else None, f"in {layer}" if layer else None]
    where = one_line(", ".join(part for part in parts if part))
    text = f"Interrupted{' ' if where else ''}{where}: {format_bytes(grown)} more are allocated "
    text += "than before the cell. "
    if left:
        return (
            f"{text}Its frames alone hold {format_bytes(left)}: %nbmem free traceback gives it "
            "back."
        )
    return f"{text}Names of the notebook hold it; %nbmem top lists them."


def _table(head: str, rows: list[tuple[str, int]]) -> str:
    sizes = max(len(format_bytes(count)) for _, count in rows)
    lines = [f"  {format_bytes(count):>{sizes}}  {name}" for name, count in rows]
    return "\n".join((head, *lines))
