"""Find tensors that live although nothing that Python sees leads to them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.holders import HolderKind
from nbmem.report.analysis.allocation_lines import allocation_lines

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

FEWEST = 4
"""Equal tensors of one line from which it leaves some behind each time."""
LEAST_OF_PEAK = 0.1
"""Part of the peak from which they are told."""


class UnreachableTensors(NamedTuple):
    """Tensors of one line that only references in C++ keep.

    Attributes:
        place: The line, for a sentence.
        rows: Their allocations.
        times: How many of one size there are.
    """

    place: str
    rows: Ints
    times: int


def unreachable_tensors(e: Evidence) -> UnreachableTensors | None:
    """Return those of the line with most of them; None if they are few."""
    made: dict[str, list[int]] = defaultdict(list)
    a, lines = e.card_ledger.allocations, allocation_lines(e.card_ledger)
    for held in e.held_only_by(HolderKind.UNSEEN):
        row = e.row_of(held)
        line = None if row is None else lines.get(row)
        if row is not None and line is not None:
            outer = line.lines[-1]
            made[f"`{outer.text}` ({outer.place})" if outer.text else outer.place].append(row)
    if not made:
        return None
    place, rows = max(made.items(), key=lambda one: int(a.block[one[1]].sum()))
    times = Counter(a.block[rows].tolist()).most_common(1)[0][1]
    if times < FEWEST or not e.dominates(int(a.block[rows].sum()), LEAST_OF_PEAK):
        return None
    return UnreachableTensors(place, np.array(rows, np.int64), times)
