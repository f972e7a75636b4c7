"""Match allocations that repeat from one training pass to the next.

A training loop repeats itself, so facts about one allocation hold for its repetitions. A probe
reads one graph of each kind of forward, and names are read at the cell's end. Without matching, the
last pass would have other names than earlier passes. What outlives the next pass is what the user
keeps; lifetimes alone decide, so this does not depend on when a probe reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.ledger.phase_map import CALLS, NOWHERE, PhaseMap

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask


def find_repeats(
    allocations: Allocations, born_in: Ints, phases: PhaseMap, within: Mask, counts: Mask
) -> Ints:
    """Map each allocation to the row that represents all that repeat it.

    An allocation that repeats no other represents itself.

    Two phases of one name match if their allocations have the same sizes in the same order. A
    forward may be a prefix of another: a forward that runs out of memory stops early. Two inputs
    match only if the calls that follow them match, since noise and an image may have one size.
    Within matching phases the n-th allocations match, unless only one of them is freed in its
    phase.

    Args:
        allocations: The recording's allocations, in the order of allocation.
        born_in: Index of the phase in which each was allocated.
        phases: The phases.
        within: Mask of those freed in the phase in which they were allocated.
        counts: Mask of those to match; allocations made once per process are excluded.
    """
    representative = np.arange(len(allocations), dtype=np.int64)
    placed = np.flatnonzero((born_in != NOWHERE) & counts)
    order = placed[np.argsort(born_in[placed], kind="stable")]  # within a phase by allocation
    bounds = np.flatnonzero(np.diff(born_in[order], prepend=NOWHERE))
    made = {int(born_in[rows[0]]): rows for rows in np.split(order, bounds[1:]) if len(rows)}
    calls: dict[int, int] = {}  # each phase's call, and the call that it repeats
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
                representative[rows[same]] = like[same]
                # A gradient that outlives its phase; later micro-steps add another one to it.
                representative[rows[~same]] = _first_of(others, rows[~same], like[~same])
                if name in CALLS:
                    calls[int(born_in[rows[0]])] = int(born_in[like[0]])
    return representative


def _first_of(others: Ints, rows: Ints, like: Ints) -> Ints:
    """Return the first row at each place that differs from its representative.

    `others` holds these rows from one call to the next.
    """
    new = others[like] == NOWHERE
    others[like[new]] = rows[new]
    return others[like]


def _pairs(sizes: Ints, found: list[Ints], *, shorter: bool) -> list[tuple[Ints, Ints]]:
    """Pair the rows of each phase with those of the phase that it repeats."""
    known = {sizes[rows].tobytes(): rows for rows in reversed(found)}
    if shorter:
        ordered = sorted(known)  # sorted by the sizes' bytes: common prefixes are adjacent
        # From the last on: a longer forward is resolved before its prefixes.
        for key in reversed(ordered):
            at = bisect_left(ordered, key) + 1
            if at < len(ordered) and ordered[at].startswith(key):
                known[key] = known[ordered[at]][: len(known[key])]
    return [(rows, known[sizes[rows].tobytes()]) for rows in found]


def select_outliving_results(  # noqa: PLR0913 - the last one by name
    allocations: Allocations,
    born_in: Ints,
    phases: PhaseMap,
    representative: Ints,
    events: int,
    *,
    of: str = "forward",
) -> Mask:
    """Select a phase's results that outlive those of the next pass.

    A loop's variables release their results in the next pass, a list of losses does not. For the
    last pass this is unknown, so its results count as their repetitions in earlier passes do.
    Without earlier passes they are not selected.

    Args:
        allocations: The recording's allocations.
        born_in: Index of the phase in which each was allocated.
        phases: The phases.
        representative: For each allocation, the row that stands for the same allocation of all
            steps (see `find_repeats`).
        events: Number of events.
        of: Name of the phase: `forward`, or `backward` for what the loop computes behind it.
    """
    until = np.append(phases.next_pass_ends(of), np.iinfo(np.int64).max)
    end = until[np.where(born_in == NOWHERE, len(until) - 1, born_in)]
    made = phases.named(born_in, of)
    lives_on = allocations.freed >= events
    outlives = made & (end <= events) & ((allocations.freed > end) | lives_on)
    undecided = made & (end > events) & lives_on
    decided = made & ~undecided
    votes = np.zeros(len(representative), np.int64)
    np.add.at(votes, representative[decided], np.where(outlives[decided], 1, -1))
    found: Mask = outlives | (undecided & (votes[representative] > 0))
    return found
