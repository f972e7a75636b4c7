"""Charge allocated bytes to lines of the recorded code.

An allocation belongs to the innermost frame of the recorded code. So memory that a helper or a
library takes is charged to the line that called it. Autograd's thread has no Python frames; its
memory in a backward belongs to the line that last called the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.errors import LedgerImbalanceError
from nbmem.core.session.source_files import TOP_LEVEL
from nbmem.report.analysis.source_lines import name_of
from nbmem.report.exploration import LineRow, Lines

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.events import Stack
    from nbmem.core.session.session import Source
    from nbmem.report.ledger.card_ledger import CardLedger

MAX_CODE, CONTEXT_LINES = 400, 3
"""Lines up to which code is shown in full. Of longer code, lines that allocated memory are shown,
with this many lines before and after."""

MAX_ROWS = 200
"""Lines that are listed individually, largest first; the others are one row."""

_BEFORE, _BACKWARD, _OTHERS, _REST = -1, -2, -3, -4
_REASONS = {
    _REST: "its other lines",
    _BEFORE: "there before it began",
    _BACKWARD: "autograd, called by no line that is known",
    _OTHERS: "code that no line of it called",
}
_CALLS_ENGINE = ("_engine_run_backward", "_make_grads")
"""Functions of torch.autograd that run in the thread that calls backward() or grad()."""
_PYTHON_STARTS = (*TOP_LEVEL, "_run_module_as_main", "_bootstrap")
"""Outermost functions of a program's or a Python thread's stack. Autograd's thread has none."""


def lines_of(card_ledger: CardLedger, top: int) -> Lines | None:
    """Charge every allocation to a line of the recorded code.

    Args:
        card_ledger: The card's ledger.
        top: Position of the recording's peak.

    Returns:
        The lines; None if no stack shows a line of the recorded code.

    Raises:
        LedgerImbalanceError: They do not add up to what is allocated.
    """
    source = card_ledger.session.source
    if source is None:
        return None
    a = card_ledger.allocations
    charged = _charged(card_ledger, source)
    numbers, index = np.unique(charged, return_inverse=True)
    if not (numbers > 0).any():
        return None
    table = np.zeros((len(numbers), 3), np.int64)
    allocated = np.flatnonzero(a.allocated_at >= 0)
    for column, rows in enumerate(
        (card_ledger.live(top), card_ledger.live(card_ledger.events), allocated)
    ):
        np.add.at(table[:, column], index.reshape(-1)[rows], a.block[rows])
    _check(card_ledger, top, table)
    bytes_of = _largest(dict(zip(numbers.tolist(), table.tolist(), strict=True)))
    return Lines(
        file=name_of(source.file),
        code=tuple(enumerate(source.lines, 1)),
        rows=tuple(
            LineRow(number, _text(source, number), *found)
            for number, found in bytes_of.items()
            if number > 0
        ),
        elsewhere=tuple(
            LineRow(None, reason, *bytes_of[number])
            for number, reason in _REASONS.items()
            if number in bytes_of
        ),
    ).shortened(MAX_CODE, CONTEXT_LINES)


def _largest(bytes_of: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return the largest lines, and the others summed up as one."""
    lines = sorted((n for n in bytes_of if n > 0), key=lambda number: -max(bytes_of[number]))
    smaller = set(lines[MAX_ROWS:])
    listed = {number: found for number, found in bytes_of.items() if number not in smaller}
    rest = [bytes_of[number] for number in smaller]
    return {**listed, _REST: list(map(sum, zip(*rest, strict=True)))} if rest else listed


def _charged(card_ledger: CardLedger, source: Source) -> Ints:
    """Return the line number of each allocation, or the code of a reason."""
    a = card_ledger.allocations
    stacks = card_ledger.session.stacks
    # By stack: the line, or 0 if it has none; the last entry is for no stack (-1).
    line = np.array([*(_line(stack, source.file) for stack in stacks), 0], np.int64)
    calls = np.array([*map(_calls_engine, stacks), False], np.bool_)
    from_python = np.array([*map(_starts_in_python, stacks), False], np.bool_)
    charged = line[a.stack]
    in_backward = card_ledger.phases.named(card_ledger.born_in, "backward")
    # Autograd's thread allocates in a backward, with a stack that no Python thread started.
    by_engine = in_backward & (charged == 0) & ~from_python[a.stack]
    # The caller is the last allocation before it with a Python stack, if that called the engine.
    python_rows = np.where(from_python[a.stack] & (a.allocated_at >= 0), np.arange(len(a)), -1)
    last = np.maximum.accumulate(python_rows) if len(python_rows) else python_rows
    caller = np.where((last >= 0) & calls[a.stack[last]], charged[last], 0)
    charged = np.where(by_engine & (caller > 0), caller, charged)
    unknown = np.where(by_engine, _BACKWARD, _OTHERS)
    return np.where(a.allocated_at < 0, _BEFORE, np.where(charged > 0, charged, unknown))


def _line(stack: Stack, file: str) -> int:
    return next((frame.line for frame in stack if frame.file == file), 0)


def _calls_engine(stack: Stack) -> bool:
    return any(frame.function in _CALLS_ENGINE for frame in stack)


def _starts_in_python(stack: Stack) -> bool:
    return bool(stack) and stack[-1].function.startswith(_PYTHON_STARTS)


def _text(source: Source, number: int) -> str:
    return source.lines[number - 1].strip() if number <= len(source.lines) else ""


def _check(card_ledger: CardLedger, top: int, table: Ints) -> None:
    peak, at_end, _ = table.sum(axis=0).tolist()
    for position, found in ((top, peak), (card_ledger.events, at_end)):
        allocated = int(card_ledger.allocated[position])
        if found != allocated:
            raise LedgerImbalanceError(
                f"At event {position} the lines hold {found} B, the allocator {allocated} B"
            )
