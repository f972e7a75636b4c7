"""Find the variables to detach where graphs keep memory.

The tensors that the graph of `losses[3]` saved belong to `losses`. A loop's own variable often
has the same graph: what must be detached is what carries it from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nbmem.report.analysis.growth_candidates import Candidate
    from nbmem.report.ledger.card_ledger import CardLedger

SHARED = 0.5
"""Part of the smaller one's allocations that two variables' graphs must have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphHolders:
    """Variables that keep the same graphs.

    Attributes:
        carriers: Those to detach, the one that keeps most first.
        results: Those that were computed from a carrier; a loop makes them anew. Those that the
            same call of a module returned are carriers, too: any of them may be its next input.
    """

    carriers: tuple[Candidate, ...]
    results: tuple[Candidate, ...]


def join_by_graph(
    card_ledger: CardLedger, found: Sequence[Candidate], candidates: list[Candidate]
) -> list[GraphHolders]:
    """Join variables that keep the same graphs.

    Each item of a list has a graph of its own: all such lists must be detached. A single tensor
    whose graph reaches back through many iterations is a state or a sum. Of several, all others
    were computed from the oldest one.

    Args:
        card_ledger: The card's ledger.
        found: Variables whose graphs keep what several iterations made.
        candidates: All groups of live allocations.
    """
    joined = []
    left = sorted(found, key=lambda one: -len(one.rows))
    while left:
        first_rows = set(left[0].rows.tolist())
        same = [one for one in left if _shares(first_rows, one)]
        left = [one for one in left if not _shares(first_rows, one)]
        lists = [one for one in same if len(set(one.paths)) > 1]
        single = [one for one in same if len(set(one.paths)) == 1]
        single.sort(key=lambda one: _age(one, candidates))
        ages = [_age(one, candidates) for one in single]
        first = sum(_same_call(card_ledger, ages[0], age) for age in ages)
        carriers = lists + single[:first] or same
        joined.append(GraphHolders(carriers=tuple(carriers), results=tuple(single[first:])))
    return joined


def _shares(first_rows: set[int], candidate: Candidate) -> bool:
    rows = set(candidate.rows.tolist())
    return len(first_rows & rows) >= SHARED * min(len(first_rows), len(rows))


def _same_call(card_ledger: CardLedger, one: int, other: int) -> bool:
    """Return whether one call of a module allocated both rows."""
    calls, made = card_ledger.trace.calls, card_ledger.allocations.allocated_at
    if one == other or calls is None or max(one, other) >= len(made):
        return one == other
    first, second = np.searchsorted(np.sort(calls.last), made[[one, other]], side="left").tolist()
    return bool(first == second < len(calls.last))


def _age(candidate: Candidate, candidates: list[Candidate]) -> int:
    """Return the row of the tensor with the graph, or else a large number."""
    path = candidate.paths[0]
    return min(
        (
            int(other.rows[other.paths.index(path)])
            for other in candidates
            if not other.by_graph and other.root == candidate.root and path in other.paths
        ),
        default=int(np.iinfo(np.int64).max),
    )
