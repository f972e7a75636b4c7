"""Find tensors that each iteration makes anew, larger: `host = torch.cat((host, out))`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import is_graph_name, is_place, without_shape
from nbmem.report.analysis.growth_candidates import Candidate, place_of
from nbmem.report.ledger.allocation_facts import NO_NAME
from nbmem.report.ledger.grown_variables import find_chains

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.report.analysis.iterations import Iterations, Rise
    from nbmem.report.ledger.card_ledger import CardLedger

    Ints = NDArray[np.int64]

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
        Each with those of its allocations that live at the position.
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
        live = rows[a.freed[rows] >= until]
        if rise is None or not len(live) or _is_of_decoding(card_ledger, rows):
            continue
        if _batches_grow(card_ledger, rows):
            continue
        slope = int(np.median(np.diff(a.block[rows])))
        found.append(
            (
                _named(card_ledger, rows, live, candidates),
                replace(rise, slope=slope, works=True, joined=True),
            )
        )
    return found


def _reaches_its_size(card_ledger: CardLedger, row: int) -> bool:
    """Return whether the largest tensor was replaced by one of the same size."""
    a = card_ledger.allocations
    later = np.arange(row + 1, len(a))
    later = later[a.allocated_at[later] < a.freed[row]]
    return bool(np.any(a.requested[later] == a.requested[row]) and a.freed[row] < card_ledger.events)


def _is_of_decoding(card_ledger: CardLedger, rows: Ints) -> bool:
    """Return whether modules make the tensor longer or receive it, without a backward."""
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
    """Return whether the iterations allocate other tensors that are larger each time, too."""
    a = card_ledger.allocations
    between = [
        Counter(np.delete(a.requested[first:last], 0).tolist()) for first, last in pairwise(rows.tolist())
    ]
    taken = [sum(size * count for size, count in sizes.items()) for sizes in between]
    pairs = list(pairwise(between))
    as_before = sum(_bytes(one & other) for one, other in pairs)
    larger = all(one <= other for one, other in pairwise(taken)) and taken[-1] > taken[0]
    return larger and as_before < AS_BEFORE * sum(_bytes(one) for one, _ in pairs)


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _named(
    card_ledger: CardLedger, rows: Ints, live: Ints, candidates: list[Candidate]
) -> Candidate:
    """Return the live rows with the variable that has the last of them."""
    for candidate in candidates:
        if candidate.root is not None and not candidate.by_graph and live[-1] in candidate.rows:
            path = candidate.paths[candidate.rows.tolist().index(live[-1])]
            return replace(candidate, rows=live, paths=(path,) * len(live))
    for row in reversed(rows.tolist()):
        index = int(card_ledger.names[row])
        name = "" if index == NO_NAME else without_shape(card_ledger.texts[index])
        if name and not is_graph_name(name) and not is_place(name) and not name.startswith("input "):
            place = place_of(name)
            return Candidate(
                root=place.variable, where=place.where, by_graph=False, rows=live,
                paths=(place.path,) * len(live),
            )  # fmt: skip
    return Candidate(root=None, where="", by_graph=False, rows=live, paths=())
