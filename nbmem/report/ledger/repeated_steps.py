"""Match allocations that repeat from one training pass to the next.

A training loop repeats itself, so what is known of one allocation holds for those that repeat it.
A probe reads one graph of each kind of forward, and a cell's names are read at its end. Without
this the last pass would have other names than those before it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.ledger.phase_map import CALLS, NOWHERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.report.ledger.phase_map import PhaseMap

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]


def find_repeats(
    allocations: Allocations, born_in: Ints, phases: PhaseMap, within: Mask, counts: Mask
) -> Ints:
    """Map each allocation to the row that represents all that repeat it.

    An allocation that repeats no other represents itself.

    Two phases of a name match if every single allocation of the one has the same size as that of
    the other, in the same order. A forward may be shorter, since one that runs out of memory has no
    end. An input is what the call behind it is given. Two inputs match only if these calls do, for
    noise and a picture may be of one size. Within matching phases the n-th allocations match,
    unless one of them is freed in its phase and the other is not.

    Args:
        allocations: The recording's allocations, in the order of allocation.
        born_in: Index of the phase in which each was allocated.
        phases: The phases.
        within: Mask of those freed in the phase in which they were allocated.
        counts: Mask of those that count: what is taken once in a process is not in every pass.
    """
    standing = np.arange(len(allocations), dtype=np.int64)
    placed = np.flatnonzero((born_in != NOWHERE) & counts)
    order = placed[np.argsort(born_in[placed], kind="stable")]  # within a phase by birth
    bounds = np.flatnonzero(np.diff(born_in[order], prepend=NOWHERE))
    made = {int(born_in[rows[0]]): rows for rows in np.split(order, bounds[1:]) if len(rows)}
    calls: dict[int, int] = {}  # each phase's, and the one that it is like
    others = np.full(len(allocations), NOWHERE, np.int64)
    for names in (CALLS, set(phases.names.tolist()) - set(CALLS)):
        groups: dict[tuple[str, int], list[Ints]] = {}
        for phase, rows in made.items():
            name = str(phases.names[phase])
            if name in names:
                given_to = calls.get(phase + 1, NOWHERE) if name == "input" else NOWHERE
                groups.setdefault((name, given_to), []).append(rows)
        for (name, _), found in groups.items():
            for rows, like in _pairs(allocations.requested, found, shorter=name == "forward"):
                same = within[rows] == within[like]
                standing[rows[same]] = like[same]
                # A gradient that lives on, and in later micro-steps one that is added to it.
                standing[rows[~same]] = _first_of(others, rows[~same], like[~same])
                if name in CALLS:
                    calls[int(born_in[rows[0]])] = int(born_in[like[0]])
    return standing


def _first_of(others: Ints, rows: Ints, like: Ints) -> Ints:
    """Return the first row at each place that differs from its representative.

    `others` keeps these rows from one call to the next.
    """
    new = others[like] == NOWHERE
    others[like[new]] = rows[new]
    return others[like]


def _pairs(sizes: Ints, found: list[Ints], *, shorter: bool) -> list[tuple[Ints, Ints]]:
    """Pair the rows of each phase with those of the phase that it repeats."""
    known = {sizes[rows].tobytes(): rows for rows in reversed(found)}
    if shorter:
        ordered = sorted(known)  # by the sizes' bytes: what begins alike lies together
        # From the last on, so that what a longer one stands for is known before a shorter asks.
        for key in reversed(ordered):
            at = bisect_left(ordered, key) + 1
            if at < len(ordered) and ordered[at].startswith(key):
                known[key] = known[ordered[at]][: len(known[key])]
    return [(rows, known[sizes[rows].tobytes()]) for rows in found]
