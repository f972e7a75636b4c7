"""Follow what grows from step to step: each holder's bytes at each end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import Frame
from nbmem.report.analysis.growth import Growth, numbered_steps
from nbmem.report.analysis.iterations import MIN_ITERATIONS
from nbmem.report.analysis.source_lines import adding_lines, frame_line
from nbmem.report.exploration import GrowingHolder, StepGrowth

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.session import Source
    from nbmem.report.ledger.card_ledger import CardLedger

MAX_STEPS, MAX_HOLDERS = 60, 6
"""Steps and holders that are shown; of a longer loop every n-th step, and its last."""


def growth_by_step(
    card_ledger: CardLedger, found: Sequence[Growth], room: int | None = None
) -> StepGrowth | None:
    """Return the bytes of growing variables at the end of each step.

    Args:
        card_ledger: The card's ledger.
        found: The variables that grow, from `find_growth`.
        room: Bytes that can still be allocated at the end; None if that is not known.

    Returns:
        None if nothing grows.
    """
    if not found:
        return None
    ordered = sorted(found, key=lambda one: (-one.slope, -one.held))
    numbers, ends = _steps(card_ledger, ordered[0])
    shown = np.unique(np.linspace(0, len(ends) - 1, min(MAX_STEPS, len(ends))).round().astype(int))
    numbers, ends = numbers[shown], ends[shown]
    lasting = sum(one.slope for one in ordered if _is_held(card_ledger, one))
    return StepGrowth(
        steps=tuple(numbers.tolist()),
        events=tuple(ends.tolist()),
        allocated=tuple(card_ledger.allocated[ends].tolist()),
        holders=tuple(_holder(card_ledger, one, ends) for one in ordered[:MAX_HOLDERS]),
        more=max(len(ordered) - MAX_HOLDERS, 0),
        left=room // lasting if room is not None and lasting else None,
    )


def _is_held(card_ledger: CardLedger, grown: Growth) -> bool:
    """Return whether some of what has grown lives at the end."""
    rows = np.union1d(grown.rows, grown.graph_rows)
    return bool((card_ledger.allocations.freed[rows] >= card_ledger.events).any())


def _steps(card_ledger: CardLedger, steepest: Growth) -> tuple[Ints, Ints]:
    """Return numbers and ends of the steps in which something is added.

    They are the program's steps, unless a step has several iterations (an evaluation) or there are
    none: then an iteration ends where the next one begins to add.
    """
    numbers, ends = numbered_steps(card_ledger)
    begins = np.array(steepest.begins, np.int64)
    meets = np.unique(np.searchsorted(ends, begins))
    if len(meets) >= max(MIN_ITERATIONS, len(begins) - 1):
        last = min(int(meets[-1]), len(ends) - 1)
        return numbers[meets[0] : last + 1], ends[meets[0] : last + 1]
    return np.arange(len(begins)), np.append(begins[1:], card_ledger.events)


def _holder(card_ledger: CardLedger, grown: Growth, ends: Ints) -> GrowingHolder:
    a = card_ledger.allocations
    rows = np.union1d(grown.rows, grown.graph_rows)
    alive = (a.allocated_at[rows] < ends[:, None]) & (a.freed[rows] >= ends[:, None])
    blocks = a.block[rows]
    by_category = np.bincount(card_ledger.category[rows], blocks, len(Category))
    line, number, code = _line(card_ledger, grown, rows)
    return GrowingHolder(
        name=grown.title,
        category=Category(int(by_category.argmax())),
        slope=grown.slope,
        iterations=grown.iterations,
        held=tuple((alive @ blocks).tolist()),
        line=line,
        number=number,
        code=code,
    )


def _line(card_ledger: CardLedger, grown: Growth, rows: Ints) -> tuple[str | None, int | None, str]:
    """Return the line that adds to the variable: its place, number and text."""
    source = card_ledger.session.source
    places = grown.parts if len(grown.parts) == 1 else (grown.place,) if grown.place else ()
    found = adding_lines(source.lines, places) if source is not None else []
    if source is not None and len(found) == 1:
        (number,) = found
        return _place(source, number), number, source.lines[number - 1].strip()
    return _allocating(card_ledger, grown, rows, source)


def _allocating(
    card_ledger: CardLedger, grown: Growth, rows: Ints, source: Source | None
) -> tuple[str | None, int | None, str]:
    """Return the line of the recorded code that allocated most of it."""
    stacks = card_ledger.allocations.stack[rows]
    stacks = stacks[stacks >= 0]
    if source is None or not len(stacks):
        return grown.line, None, ""
    stack = card_ledger.session.stacks[int(np.bincount(stacks).argmax())]
    number = next((frame.line for frame in stack if frame.file == source.file), None)
    if number is None:
        return grown.line, None, ""
    known = number <= len(source.lines)
    return _place(source, number), number, source.lines[number - 1].strip() if known else ""


def _place(source: Source, number: int) -> str:
    return frame_line(Frame(file=source.file, line=number, function="<module>"))
