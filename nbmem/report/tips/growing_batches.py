"""Find calls whose batches grow, since what they are made of is not emptied."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.allocation_lines import allocation_lines
from nbmem.report.ledger.observations import rows_at

if TYPE_CHECKING:
    from nbmem.report.analysis.allocation_lines import UserLine
    from nbmem.report.tips.evidence import Evidence

FEWEST = 4
"""Calls whose batches are one, two, three and four times the first one."""
_ROWS = re.compile(r" \((\d+)[,)]")


class GrowingBatch(NamedTuple):
    """Batches that grow by the first one with each call.

    Attributes:
        line: The line that makes them.
        rows: Rows of the first batch, and of the last.
        size: Bytes of the largest one.
    """

    line: UserLine
    rows: tuple[int, int]
    size: int


def growing_batch(e: Evidence) -> GrowingBatch | None:
    """Return the batches that grow from call to call, or None.

    Their counts are exact multiples of the first: longer sequences, or batches that a search
    doubles, are none.
    """
    ledger, seen = e.card_ledger, e.trace.storage_labels
    inputs = np.flatnonzero(seen.category == Category.INPUTS)
    rows = rows_at(ledger.allocations, seen.addr[inputs], seen.position[inputs], ledger.events)
    lines = allocation_lines(ledger)
    batches: dict[UserLine, dict[int, int]] = {}
    for row, index in zip(rows.tolist(), seen.name[inputs].tolist(), strict=True):
        count, line = _ROWS.search(e.session.names[index]), lines.get(row)
        if row >= 0 and count is not None and line is not None:
            batches.setdefault(line.lines[0], {})[row] = int(count[1])
    for maker, found in batches.items():
        counts = [found[row] for row in sorted(found)]
        first = counts[0]
        if first > 1 and len(counts) >= FEWEST:
            whole = [min(first * (number + 1), counts[-1]) for number in range(len(counts))]
            if counts == whole and counts[-1] >= FEWEST * first:
                size = max(int(ledger.allocations.block[row]) for row in found)
                return GrowingBatch(maker, (first, counts[-1]), size)
    return None
