"""Run a cell with a tip's change and without it, on a virtual card."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.core.units import format_bytes
from nbmem.estimates.card_choice import figures_of
from nbmem.estimates.programs.source_edits import difference
from nbmem.estimates.questions.plan_verdict import AS_IT_IS
from nbmem.estimates.remedies.base import BATCH
from nbmem.estimates.runs.probe_run import Reply, Request, refuse
from nbmem.report.estimate_results import Option, Plan
from nbmem.report.tips.applicable import KEPT_AS, REMEDY_OF

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.report.exploration import StepGrowth
    from nbmem.report.model import Finding
    from nbmem.virtual.cards import Card

    Run = Callable[[Program, Request], Reply]

CHANGED = "with the change"
_ROWS = re.compile(r"\bnot (\d+)\b")
"""The batch that ran out, in the title of its tip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramChange:
    """A program without the change of a tip, and with it.

    Attributes:
        before: The program as it is.
        after: The program with the change.
        keys: Remedies of `plan` under which `after` runs.
        value: The value of the program's variable in `after`; None for its own.
    """

    before: Program
    after: Program
    keys: tuple[str, ...] = ()
    value: int | None = None


def change_of(
    finding: Finding,
    growth: StepGrowth | None,
    program: Program,
    bind: Callable[[str], Program],
) -> ProgramChange:
    """Return what a tip changes in a cell.

    Args:
        finding: The tip.
        growth: What grows in the cell, if the tip is about that.
        program: The cell.
        bind: Returns the cell with a variable of this name; a UsageError where it has none.

    Raises:
        UsageError: The change cannot be made; the text says why and what to do.
    """
    if finding.rule in REMEDY_OF:
        return ProgramChange(before=program, after=program, keys=(REMEDY_OF[finding.rule],))
    if finding.rule == "batch_size" and finding.code is not None:
        return _smaller_batch(finding, finding.code, program, bind)
    if finding.rule in KEPT_AS:
        return _kept_otherwise(finding, growth, program)
    raise UsageError(
        f"Cannot try {finding.rule}: its change has no one place in the cell. "
        f"Make it yourself (`%nbmem explain {finding.rule}`) and run the cell."
    )


def _smaller_batch(
    finding: Finding, code: str, program: Program, bind: Callable[[str], Program]
) -> ProgramChange:
    """Change the batch: its variable, or the one number that is it."""
    (line,) = ast.parse(code).body
    assert isinstance(line, ast.Assign)  # noqa: S101 - batch_size_code writes it
    name, size = ast.unparse(line.targets[0]), int(ast.literal_eval(line.value))
    try:
        bound = bind(name)
    except UsageError:
        bound = program
    if bound.binding is not None:
        return ProgramChange(before=bound, after=bound, value=size)
    rows = _ROWS.search(finding.title)
    written = [] if rows is None else _numbers(program.source, int(rows[1]))
    if len(written) != 1:
        raise UsageError(
            f"Cannot try a batch of {size}: it is not clear what the batch is in the cell. "
            "Give it a variable of its own (`batch_size`) and run the cell, or use %%nbmem fit."
        )
    return ProgramChange(before=program, after=_replaced(program, written[0], str(size)))


def _numbers(source: str, value: int) -> list[ast.expr]:
    """Return the places where a source has a number."""
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and node.value == value and type(node.value) is int
    ]


def _kept_otherwise(finding: Finding, growth: StepGrowth | None, program: Program) -> ProgramChange:
    """Change the line that adds to a growing variable."""
    call = KEPT_AS[finding.rule]
    for holder in growth.holders if growth else ():
        if holder.number is not None and (holder.name or "`").split("`")[1] in finding.title:
            added = _added(program.source, holder.number)
            if added is not None:
                text = ast.get_source_segment(program.source, added) or ""
                plain = isinstance(added, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
                text = text if plain else f"({text})"
                return ProgramChange(
                    before=program, after=_replaced(program, added, f"{text}.{call}")
                )
    raise UsageError(
        f"Cannot try {finding.rule}: no one line of the cell adds to what grows. "
        f"Keep `x.{call}` where it is added, and run the cell."
    )


def _added(source: str, number: int) -> ast.expr | None:
    """Return what the statement in a line adds to a variable, or None."""
    from nbmem.report.analysis.source_lines import ADDS  # imports numpy

    for node in ast.walk(ast.parse(source)):
        if getattr(node, "lineno", None) != number:
            continue
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ADDS
            and len(node.args) == 1
            and not isinstance(node.args[0], (ast.List, ast.Tuple, ast.Starred))
        ):
            return node.args[0]
        if isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
        ):
            return node.value
    return None


def _replaced(program: Program, node: ast.expr, text: str) -> Program:
    """Return the program with other text in place of an expression."""
    lines = program.source.splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    # Columns are in bytes of UTF-8.
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    lines[first : last + 1] = [f"{head}{text}{tail}"]
    return replace(program, source="".join(lines))


def try_change(  # noqa: PLR0913, PLR0917 - the question's parts
    finding: Finding,
    change: ProgramChange,
    card: Card,
    margin: int,
    run: Run,
    tell: Callable[[str], None],
) -> Plan:
    """Run a program without a change and with it, and compare the bytes.

    Args:
        finding: The tip.
        change: What it changes.
        card: On which card.
        margin: Bytes of it to keep free.
        run: Runs a program once.
        tell: Called with a line of text after every run.

    Raises:
        UsageError: The program does not run as it is, for another reason than memory.
    """
    value = None if change.before.binding is None else change.before.binding.value
    request = Request(card=card, margin=margin, value=value)
    before = run(change.before, request).probe
    refuse(before, "as it is")
    tell(f"as it is: {format_bytes(before.allocated)}")
    value = change.value if change.value is not None else value
    reply = run(change.after, replace(request, remedies=change.keys, value=value))
    after, why_not = reply.probe, reply.refused
    if not after.ran:
        why_not = f"It did not run to its end: {after.failure}."
    if why_not is None:
        tell(f"with the change: {format_bytes(after.allocated)}")
    first = Option(key=AS_IT_IS, title=AS_IT_IS, price="", code="", probe=before)
    changed = change.after.source if reply.changed is None else reply.changed
    if change.value is not None and change.before.binding is not None:
        code = f"{change.before.binding.name} = {change.value}"
    else:
        code = reply.code.replace(BATCH, "")
    second = Option(
        key=finding.rule,
        title=CHANGED,
        price=reply.price,
        code=code or changed,
        probe=None if why_not else after,
        saved=before.allocated - after.allocated,
        saved_reserved=before.reserved - after.reserved,
        why_not=why_not,
        diff=difference(change.before.source, changed),
    )
    return Plan(
        title=change.before.title,
        card=figures_of(card, margin),
        target=card.total_bytes - margin,
        variable=None,
        value=None,
        options=(first, second),
        sentences=_sentences(finding.title, first, second, card),
    )


def _sentences(title: str, first: Option, second: Option, card: Card) -> tuple[str, ...]:
    """Return the verdict on a tip that was tried."""
    assert first.probe is not None  # noqa: S101 - it ran
    before = f"{format_bytes(first.probe.need)}"
    if second.probe is None:
        return (f"Tried: {title}. {second.why_not}", f"As it is, it needs {before}.")
    after, less = second.probe.need, first.probe.need - second.probe.need
    saved = f"{format_bytes(less)} less" if less >= 0 else f"{format_bytes(-less)} more"
    fits = f"fits {card.name}" if second.probe.fits else f"does not fit {card.name}"
    verdict = (
        f"Tried: {title}. The process needs {format_bytes(after)}, not {before}: "
        f"{saved}; it {fits}."
    )
    return (verdict,)
