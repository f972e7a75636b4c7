"""Find the results of a forward that the user keeps.

Lifetimes alone decide, so the result does not depend on when a probe reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.ledger.phase_map import NOWHERE, PhaseMap

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask


def select_outliving_results(  # noqa: PLR0913 - the last one by name
    allocations: Allocations,
    born_in: Ints,
    phases: PhaseMap,
    representative: Ints,
    events: int,
    *,
    of: str = "forward",
) -> Mask:
    """Select a phase's results that outlive those of the next pass of the loop.

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
