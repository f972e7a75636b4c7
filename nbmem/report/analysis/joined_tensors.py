"""Find tensors to which iterations join others, as by `torch.cat`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.growth_candidates import Candidate, variable_of
from nbmem.report.ledger.grown_variables import find_chains

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.iterations import Iterations, Rise
    from nbmem.report.ledger.card_ledger import CardLedger

AS_BEFORE = 0.75
"""Part of an iteration's other allocations whose sizes are unchanged, where only one tensor grows.
With a longer batch all of them change, except autocast's copies of the weights."""
_VARIABLES = (
    Category.USER_TENSORS,
    Category.BUFFERS,
    Category.INPUTS,
    Category.ACTIVATIONS,
    Category.TEMPORARIES,
    Category.UNKNOWN,
)


def joined_tensors(
    card_ledger: CardLedger, until: int, candidates: list[Candidate], iterations: Iterations
) -> list[tuple[Candidate, Rise]]:
    """Find variables whose one tensor is larger in each iteration.

    Not found: the keys and values that decoding makes longer, and what is larger because the batch
    is.

    Returns:
        Each with the allocations that it had until the position.
    """
    a = card_ledger.allocations
    may_be = np.isin(card_ledger.category, _VARIABLES)
    found = []
    for chain in find_chains(a, may_be, card_ledger.events):
        rows = np.array(chain, np.int64)
        if _reaches_its_size(card_ledger, int(rows[-1])):
            continue
        rows = rows[a.allocated_at[rows] < until]
        rise = iterations.rise_of(rows, rows[:0])
        if rise is None or a.freed[rows[-1]] < until:
            continue
        if not (_is_of_decoding(card_ledger, rows) or _batches_grow(card_ledger, rows)):
            slope = int(np.median(np.diff(a.block[rows])))
            rise = replace(rise, slope=slope, works=True, joined=True)
            found.append((_named(card_ledger, rows, candidates), rise))
    return found


def _reaches_its_size(card_ledger: CardLedger, row: int) -> bool:
    """Return whether the largest tensor was replaced by one of the same size."""
    a = card_ledger.allocations
    last = int(np.searchsorted(a.allocated_at, a.freed[row]))
    again = np.any(a.requested[row + 1 : last] == a.requested[row])
    return bool(again and a.freed[row] < card_ledger.events)


def _is_of_decoding(card_ledger: CardLedger, rows: Ints) -> bool:
    """Return whether modules make or receive the tensor without a backward."""
    if np.any(card_ledger.category[rows] == Category.INPUTS):
        return True
    if any(span.name == "backward" for _, span in card_ledger.phases.spans):
        return False
    calls, at = card_ledger.trace.calls, card_ledger.allocations.allocated_at[rows]
    if calls is None:
        return bool(np.all(card_ledger.phases.named(card_ledger.born_in[rows], "inference")))
    place = np.minimum(np.searchsorted(calls.last, at, "right"), max(0, len(calls) - 1))
    return bool(len(calls) and np.mean((calls.first[place] <= at) & (at < calls.last[place])) > 0.5)


def _batches_grow(card_ledger: CardLedger, rows: Ints) -> bool:
    """Return whether other tensors are larger in each iteration, too."""
    requested = card_ledger.allocations.requested
    between = [
        Counter(requested[first + 1 : last].tolist()) for first, last in pairwise(rows.tolist())
    ]
    taken = [_bytes(sizes) for sizes in between]
    pairs = list(pairwise(between))
    as_before = sum(_bytes(one & other) for one, other in pairs)
    larger = all(one <= other for one, other in pairwise(taken)) and taken[-1] > taken[0]
    return larger and as_before < AS_BEFORE * sum(_bytes(one) for one, _ in pairs)


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _named(card_ledger: CardLedger, rows: Ints, candidates: list[Candidate]) -> Candidate:
    """Return the rows with the variable that has the last of them."""
    for candidate in candidates:
        if candidate.root is not None and not candidate.by_graph and rows[-1] in candidate.rows:
            path = candidate.paths[candidate.rows.tolist().index(rows[-1])]
            return replace(candidate, rows=rows, paths=(path,) * len(rows))
    names = (variable_of(card_ledger, row) for row in reversed(rows.tolist()))
    place = next((name for name in names if name is not None), None)
    return Candidate(
        root=place and place.variable,
        where=place.where if place else "",
        by_graph=False,
        rows=rows,
        paths=(place.path,) * len(rows) if place else (),
    )
