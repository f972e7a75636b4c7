"""Find the user's lines of large allocations, also without `--stacks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from nbmem.core.session.events import Frame
from nbmem.core.session.source_files import TOP_LEVEL
from nbmem.report.analysis.source_lines import frame_line, users_line

if TYPE_CHECKING:
    from nbmem.report.ledger.card_ledger import CardLedger

MOST_TEXT = 60
"""Characters of a line in a title."""
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
"""Functions that Python makes of a line, up to 3.11."""
_known: WeakKeyDictionary[CardLedger, dict[int, AllocationLine]] = WeakKeyDictionary()
"""Lines of the ledgers that are read now: several rules and views need them."""


@dataclass(frozen=True, slots=True)
class UserLine:
    """One line of the user's code.

    Attributes:
        frame: Its file, number and function.
        text: What the line says; empty if it was not kept.
        begins: The first line of its function, which tells functions of one name apart; 0 if it is
            not known.
    """

    frame: Frame
    text: str
    begins: int = 0

    @property
    def place(self) -> str:
        """The line for a sentence: `train.py:12`."""
        return frame_line(self.frame)

    @property
    def quoted(self) -> str:
        """The line with its text for a title: `` `x = f(y)` (train.py:12) ``."""
        return f"`{shorten(self.text)}` ({self.place})" if self.text else self.place

    @property
    def inside(self) -> str:
        """The line's function as it follows in a sentence: ` in train()`.

        Empty at the top of a file or a cell.
        """
        function = self.frame.function
        return "" if function.startswith(TOP_LEVEL) else f" in {function}()"


@dataclass(frozen=True, slots=True)
class AllocationLine:
    """The lines of the user's code that made an allocation.

    Attributes:
        by_module: Whether an object of a library made it: a module that was called there, built,
            loaded or moved.
        lines: The user's lines, innermost first, at least one.
        callers: The user's lines around these, innermost first.
    """

    by_module: bool
    lines: tuple[UserLine, ...]
    callers: tuple[UserLine, ...] = field(default=(), compare=False)


def shorten(text: str) -> str:
    """Return a line's text for a title, cut where it is too long."""
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."


def allocation_lines(card_ledger: CardLedger) -> Mapping[int, AllocationLine]:
    """Return the lines of a card's large allocations, by row.

    Stacks are taken of the first allocations only. A later one has the line of the earlier ones of
    its size in a phase of that name, if they have one line.
    """
    if card_ledger not in _known:
        _known[card_ledger] = _found_lines(card_ledger)
    return _known[card_ledger]


def _found_lines(card_ledger: CardLedger) -> dict[int, AllocationLine]:
    fact = card_ledger.session.facts.get("lines")
    if not fact:
        return {}
    stacks = _stacks(fact)
    a, card = card_ledger.allocations, card_ledger.trace.info.index
    by_event = {event: stacks[stack] for device, event, stack in fact["rows"] if device == card}
    rows = np.flatnonzero(np.isin(a.allocated_at, list(by_event)))
    found = {row: by_event[int(a.allocated_at[row])] for row in rows.tolist()}
    found = {row: line for row, line in found.items() if line is not None}
    alike: dict[tuple[int, str], set[AllocationLine]] = {}
    for row, line in found.items():
        alike.setdefault(_key(card_ledger, row), set()).add(line)
    least = min((int(a.requested[row]) for row in found), default=0)
    last = max((int(a.allocated_at[row]) for row in found), default=0)
    later = np.flatnonzero((a.requested >= least) & (a.allocated_at > last))
    for row in later.tolist() if found else ():
        lines = alike.get(_key(card_ledger, row), set())
        if len(lines) == 1:
            found[row] = next(iter(lines))
    return found


def allocation_place(card_ledger: CardLedger, row: int) -> str | None:
    """Return the user's line of an allocation: `train.py:12 in step`, or None."""
    stack = int(card_ledger.allocations.stack[row])
    if stack >= 0:
        return users_line(card_ledger.session.stacks[stack])
    line = allocation_lines(card_ledger).get(row)
    if line is None:
        return None
    frames = [own.frame for own in line.lines]
    named = [frame for frame in frames if frame.function not in COMPREHENSIONS]
    return users_line(tuple(named or frames))


def _key(card_ledger: CardLedger, row: int) -> tuple[int, str]:
    phase = int(card_ledger.born_in[row])
    name = "" if phase < 0 else str(card_ledger.phases.names[phase])
    return int(card_ledger.allocations.requested[row]), name


def _stacks(fact: Mapping[str, list[Any]]) -> list[AllocationLine | None]:
    described = fact["frames"]
    begins = fact.get("begins") or [0] * len(described)
    frames = [
        UserLine(Frame(file, line, function), text, first)
        for (file, line, function, text), first in zip(described, begins, strict=True)
    ]
    outer = fact.get("outer") or [[]] * len(fact["stacks"])

    def lines(indices: Iterable[int]) -> tuple[UserLine, ...]:
        return tuple(frames[index] for index in indices)

    return [
        AllocationLine(bool(module), lines(own), lines(around)) if own else None
        for (module, *own), around in zip(fact["stacks"], outer, strict=True)
    ]
