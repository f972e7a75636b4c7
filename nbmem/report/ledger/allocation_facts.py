"""Facts of every allocation, from which its category follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.ledger.observations import NO_NAME

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.categories import Category
    from nbmem.report.ledger.phase_map import PhaseMap

__all__ = ["NO_NAME", "Facts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """Inputs of the attribution rules, one row per allocation.

    Attributes:
        allocations: Positions of allocation and free, and bytes.
        events: Number of events.
        phases: The recording's phases.
        born_in: Index of the phase in which each was allocated. NOWHERE before the recording,
            between phases, and for sums of counters, which are no tensors.
        died_in: Index of the phase in which each was freed; NOWHERE between phases and if never
            freed.
        within_one_phase: Mask of those allocated and freed inside one phase, or inside one gap
            between phases. An optimizer's step counts as one, whatever phases its closure has.
        seen_as: For each category that a probe recorded, the mask of its allocations: recorded
            ones, and those that they repeat in another pass of the loop.
        fresh: Mask of the inputs that the loop made itself, between two calls of modules.
        given_cache: Mask of what caches of language models hold, unless a graph made it.
        reached: Mask of the allocations that Python reached at the end; None without a heap walk.
        kept: Mask of a forward's results that outlive the next pass of the loop, or that belong to
            a variable that is larger in each pass.
        kept_from_backward: Mask of what a backward phase made and the next one of the loop did not
            free: a graph has it that the loop built behind its call of backward.
        recomputed: Mask of those that a forward inside a backward allocated (checkpointing).
        outlive_recompute: Mask of those of them that outlive that forward.
        autocast_copies: Mask of autocast's copies of weights in an inference.
        undisturbed: Mask of those in whose lifetime only a kernel's workspace was allocated.
        threads: How many threads trained at the same time; 1 where the phases tell them apart.
    """

    allocations: Allocations
    events: int
    phases: PhaseMap
    born_in: Ints
    died_in: Ints
    within_one_phase: Mask
    seen_as: dict[Category, Mask]
    fresh: Mask
    given_cache: Mask
    reached: Mask | None
    kept: Mask
    kept_from_backward: Mask
    recomputed: Mask
    outlive_recompute: Mask
    autocast_copies: Mask
    undisturbed: Mask
    threads: int

    def observed(self, category: Category) -> Mask:
        """Return the mask of the allocations that a probe recorded as a category."""
        return self.seen_as[category]

    @property
    def unseen(self) -> Mask:
        """Mask of the allocations that no probe recorded."""
        seen: Mask = np.any(list(self.seen_as.values()), axis=0)
        return ~seen
