"""Find the variables to detach where graphs keep memory.

The tensors that the graph of `losses[3]` saved belong to `losses`. A loop's own variable often
has the same graph: what must be detached is what carries it from one iteration to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.growth_candidates import common_place

if TYPE_CHECKING:
    from nbmem.report.analysis.growth_candidates import Candidate
    from nbmem.report.analysis.iterations import Rise

    Rising = tuple[Candidate, Rise]

SHARED = 0.5
"""Part of the smaller one's allocations that two variables' graphs must have in common."""


def join_by_graph(
    found: list[Rising], candidates: list[Candidate]
) -> list[tuple[Candidate, Rise, tuple[str, ...]]]:
    """Join variables that keep the same graphs.

    Each item of a list has a graph of its own: all such lists must be detached. A single tensor
    whose graph reaches back through many iterations is a state or a sum. Of several, all others
    were computed from the oldest one.

    Args:
        found: Variables whose graphs keep more with each iteration.
        candidates: All groups of live allocations.

    Returns:
        The variable that keeps most of each graph, and the places of the others.
    """
    joined = []
    left = sorted(found, key=lambda one: -len(one[0].rows))
    while left:
        first, *rest = left
        mine = set(first[0].rows.tolist())
        same = [one for one in rest if _shares(mine, one[0])]
        left = [one for one in rest if not _shares(mine, one[0])]
        chosen = _carriers([first, *same], candidates)
        candidate, rise = chosen[0]
        others = tuple(dict.fromkeys(common_place(c.paths) for c, _ in chosen[1:]))
        joined.append((candidate, rise, others))
    return joined


def _shares(mine: set[int], candidate: Candidate) -> bool:
    rows = set(candidate.rows.tolist())
    return len(mine & rows) >= SHARED * min(len(mine), len(rows))


def _carriers(same: list[Rising], candidates: list[Candidate]) -> list[Rising]:
    """Return the variables that carry graphs from one iteration to the next."""
    lists = [one for one in same if len(set(one[0].paths)) > 1]
    single = [one for one in same if len(set(one[0].paths)) == 1]
    oldest = min(single, key=lambda one: _age(one[0], candidates), default=None)
    return lists + ([oldest] if oldest else []) or same


def _age(candidate: Candidate, candidates: list[Candidate]) -> int:
    """Return the row of the tensor with the graph; a large number if it has none."""
    path = candidate.paths[0]
    return min(
        (
            int(other.rows[other.paths.index(path)])
            for other in candidates
            if not other.by_graph and other.root == candidate.root and path in other.paths
        ),
        default=int(np.iinfo(np.int64).max),
    )
