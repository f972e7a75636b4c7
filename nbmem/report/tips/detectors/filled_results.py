"""Find tensors that a function makes for the results of many calls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import STEP
from nbmem.report.analysis.allocation_lines import UserLine, allocation_lines
from nbmem.report.ledger.observations import rows_at

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

FEWEST = 4
"""Calls of a module during which a tensor waits for their results."""
_EMPTY = re.compile(r"^[^\W\d]\w* = (?:torch\.|\w+\.new_)(?:zeros|empty|full|ones)(?:_like)?\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledResults:
    """Tensors that collect the results of an inference, part by part.

    Attributes:
        lines: The lines that make them, the largest first.
        rows: Their allocations.
        made_of_them: What the same functions make behind the last call.
    """

    lines: tuple[UserLine, ...]
    rows: Ints
    made_of_them: Ints


def filled_results(e: Evidence) -> FilledResults | None:
    """Return the tensors at the peak that collect results, or None.

    A function makes each of them before it calls a module many times, gives it to no module, and
    has nothing trained meanwhile.
    """
    ledger, a, calls = e.card_ledger, e.card_ledger.allocations, e.trace.calls
    if calls is None:
        return None
    names = e.session.names
    steps = [index for index in np.unique(calls.name).tolist() if names[index].endswith(STEP)]
    returns = np.sort(calls.last[~np.isin(calls.name, steps)])
    backwards = [ledger.bounds(s)[0] for _, s in ledger.phases.spans if s.name == "backward"]
    seen, top = e.trace.storage_labels, e.report.peak.at.event
    inputs = seen.category == Category.INPUTS
    given = {*rows_at(a, seen.addr[inputs], seen.position[inputs], ledger.events).tolist()}
    found: dict[int, UserLine] = {}
    for row, line in allocation_lines(ledger).items():
        born, freed = int(a.allocated_at[row]), int(a.freed[row])
        inside = np.searchsorted(returns, [born, freed])
        if (
            born < top <= freed < ledger.events
            and not line.by_module
            and _EMPTY.match(line.lines[0].text)
            and inside[1] - inside[0] >= FEWEST
            and row not in given
            and not any(born < at < freed for at in backwards)
        ):
            found[row] = line.lines[0]
    if not found:
        return None
    rows = np.array(sorted(found, key=lambda row: -int(a.block[row])), np.int64)
    functions = {(line.frame.file, line.frame.function) for line in found.values()}
    last = int(returns[returns < a.freed[rows].max()].max())
    behind = [
        row
        for row, line in allocation_lines(ledger).items()
        if a.allocated_at[row] > last
        and (line.lines[0].frame.file, line.lines[0].frame.function) in functions
    ]
    lines = tuple(dict.fromkeys(found[row] for row in rows.tolist()))
    return FilledResults(lines=lines, rows=rows, made_of_them=np.array(behind, np.int64))
