"""Find the results of a forward that the user keeps.

Lifetimes alone decide, so the result does not depend on when a probe reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.ledger.phase_map import NOWHERE

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.report.ledger.phase_map import PhaseMap


def select_outliving_results(
    allocations: Allocations, born_in: Ints, phases: PhaseMap, representative: Ints, events: int
) -> Mask:
    """Select a forward's results that outlive the next pass's forwards.

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
    """
    until = np.append(phases.next_pass_ends("forward"), np.iinfo(np.int64).max)
    end = until[np.where(born_in == NOWHERE, len(until) - 1, born_in)]
    in_forward = phases.named(born_in, "forward")
    lives_on = allocations.freed >= events
    outlives = in_forward & (end <= events) & ((allocations.freed > end) | lives_on)
    undecided = in_forward & (end > events) & lives_on
    decided = in_forward & ~undecided
    votes = np.zeros(len(representative), np.int64)
    np.add.at(votes, representative[decided], np.where(outlives[decided], 1, -1))
    found: Mask = outlives | (undecided & (votes[representative] > 0))
    return found
