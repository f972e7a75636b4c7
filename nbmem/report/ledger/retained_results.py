"""What of a forward's results the user keeps: a fact of their lives, not of when it is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.ledger.phase_map import NOWHERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.report.ledger.phase_map import PhaseMap

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]


def kept(
    allocations: Allocations, born_in: Ints, phases: PhaseMap, standing: Ints, events: int
) -> Mask:
    """Which of a forward's results outlive the forwards of the next pass.

    A loop's variables let go of theirs in the next pass, a list of losses does not. In the last
    pass nobody can tell, so its results are what those like them were in the passes before; where
    there are none, they are not kept.

    Args:
        allocations: The recording's allocations.
        born_in: Index of the phase of each one's birth.
        phases: The phases.
        standing: For each allocation the row that stands for those like it (repeated_steps.py).
        events: Number of events.
    """
    until = np.append(phases.next_pass_ends("forward"), np.iinfo(np.int64).max)
    end = until[np.where(born_in == NOWHERE, len(until) - 1, born_in)]
    mine = phases.named(born_in, "forward")
    lives = allocations.freed >= events
    outlives = mine & (end <= events) & ((allocations.freed > end) | lives)
    open_end = mine & (end > events) & lives
    told = mine & ~open_end
    votes = np.zeros(len(standing), np.int64)
    np.add.at(votes, standing[told], np.where(outlives[told], 1, -1))
    found: Mask = outlives | (open_end & (votes[standing] > 0))
    return found
