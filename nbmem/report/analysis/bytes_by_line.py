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
    from numpy.typing import NDArray

    from nbmem.core.session.events import Stack
    from nbmem.core.session.session import Source
    from nbmem.report.ledger.card_ledger import CardLedger

    Ints = NDArray[np.int64]

MAX_CODE, AROUND = 400, 3
"""Length up to which code is shown whole; and the lines shown before and after those that took
memory in longer code."""

MAX_ROWS = 200
"""Lines that are listed individually, the largest."""

_BEFORE, _BACKWARD, _OTHERS, _REST = -1, -2, -3, -4
_REASONS = {
    _REST: "its other lines",
    _BEFORE: "there before it began",
    _BACKWARD: "autograd, called by no line that is known",
    _OTHERS: "code that no line of it called",
}
_CALLS_ENGINE = ("_engine_run_backward", "_make_grads")
"""Functions of torch.autograd that run in the thread that calls backward() or grad()."""
_STARTS = (*TOP_LEVEL, "_run_module_as_main", "_bootstrap")
"""Outermost functions of a program's or a Python thread's stack; the engine's has none of them."""


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
    born = np.flatnonzero(a.allocated_at >= 0)
    for column, rows in enumerate(
        (card_ledger.live(top), card_ledger.live(card_ledger.events), born)
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
    ).shortened(MAX_CODE, AROUND)


def _largest(bytes_of: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return the largest lines, and the others summed up as one."""
    lines = sorted((n for n in bytes_of if n > 0), key=lambda number: -max(bytes_of[number]))
    left = set(lines[MAX_ROWS:])
    kept = {number: found for number, found in bytes_of.items() if number not in left}
    rest = [bytes_of[number] for number in left]
    return {**kept, _REST: list(map(sum, zip(*rest, strict=True)))} if rest else kept


def _charged(card_ledger: CardLedger, source: Source) -> Ints:
    """Return the line number of each allocation, or the code of a reason."""
    a = card_ledger.allocations
    stacks = card_ledger.session.stacks
    # By stack: the line, or 0 if it has none; the last entry is for no stack (-1).
    line = np.array([*(_line(stack, source.file) for stack in stacks), 0], np.int64)
    calls = np.array([*map(_calls_engine, stacks), False], np.bool_)
    programs = np.array([*map(_begins, stacks), False], np.bool_)
    charged = line[a.stack]
    in_backward = card_ledger.phases.named(card_ledger.born_in, "backward")
    # The engine's: in a backward, without a line, and from no Python thread.
    engines = in_backward & (charged == 0) & ~programs[a.stack]
    # The last caller of the engine, unless another stack of a program comes in between.
    programs_own = np.where(programs[a.stack] & (a.allocated_at >= 0), np.arange(len(a)), -1)
    last = np.maximum.accumulate(programs_own) if len(programs_own) else programs_own
    caller = np.where((last >= 0) & calls[a.stack[last]], charged[last], 0)
    charged = np.where(engines & (caller > 0), caller, charged)
    unknown = np.where(engines, _BACKWARD, _OTHERS)
    return np.where(a.allocated_at < 0, _BEFORE, np.where(charged > 0, charged, unknown))


def _line(stack: Stack, file: str) -> int:
    return next((frame.line for frame in stack if frame.file == file), 0)


def _calls_engine(stack: Stack) -> bool:
    return any(frame.function in _CALLS_ENGINE for frame in stack)


def _begins(stack: Stack) -> bool:
    return bool(stack) and stack[-1].function.startswith(_STARTS)


def _text(source: Source, number: int) -> str:
    return source.lines[number - 1].strip() if number <= len(source.lines) else ""


def _check(card_ledger: CardLedger, top: int, table: Ints) -> None:
    peak, kept, _ = table.sum(axis=0).tolist()
    for position, found in ((top, peak), (card_ledger.events, kept)):
        allocated = int(card_ledger.allocated[position])
        if found != allocated:
            raise LedgerImbalanceError(
                f"At event {position} the lines hold {found} B, the allocator {allocated} B"
            )
