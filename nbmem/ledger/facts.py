"""What is known of every allocation before anybody says what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.categories import Category
from nbmem.core.events import Action
from nbmem.ledger.phase_map import NOWHERE
from nbmem.ledger.repeats import repeated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.allocator.follow import Allocations
    from nbmem.core.events import Events
    from nbmem.core.session import Identities
    from nbmem.ledger.phase_map import PhaseMap

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

NO_NAME = -1

IDENTITY = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.INPUTS,
    Category.USER_TENSORS,
)
"""Categories that a probe can see, the one that counts most first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """What the passes look at: one row for each allocation.

    Attributes:
        allocations: Births, deaths and bytes.
        events: Number of events.
        phases: Where the phases lie.
        born_in: Index of the phase of birth; NOWHERE before the recording and between phases.
        died_in: Index of the phase of death; NOWHERE between phases and if it never died.
        seen_as: For each category that a probe saw: where it was last seen as that, else -1.
        calm: Whether nothing was allocated between its birth and its death.
    """

    allocations: Allocations
    events: int
    phases: PhaseMap
    born_in: Ints
    died_in: Ints
    seen_as: dict[Category, Ints]
    calm: Mask

    def seen(self, category: Category) -> Mask:
        """Which allocations a probe saw as that."""
        return self.seen_as[category] >= 0

    @property
    def within_one_phase(self) -> Mask:
        """Born and dead inside one phase; between phases nobody can say."""
        within: Mask = (self.born_in == self.died_in) & (self.born_in != NOWHERE)
        return within


def facts_of(
    allocations: Allocations, events: Events, phases: PhaseMap, identities: Identities
) -> tuple[Facts, Ints]:
    """Gather the facts.

    Args:
        allocations: Every allocation of the recording.
        events: The recorded events.
        phases: Where the phases lie.
        identities: What was seen to live where.

    Returns:
        The facts, and for each allocation the index of its name (NO_NAME if it has none).
    """
    born, freed, count = allocations.born, allocations.freed, len(events)
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    born_in, died_in = phases.of(born), phases.of(freed)
    rows = _row_of(allocations, identities, count)
    # What a graph has saved is named after its module, unless the notebook has a name for it.
    saved = np.full(len(allocations), NO_NAME, np.int64)
    graphs = np.flatnonzero((rows >= 0) & (identities.category == Category.ACTIVATIONS))
    saved[rows[graphs]] = identities.name[graphs]
    names = repeated(saved, allocations, born_in, phases)
    found = np.flatnonzero((rows >= 0) & (identities.category != Category.ACTIVATIONS))
    # The category that counts most names it last; within one, the latest sighting.
    order = found[np.argsort(-identities.category[found].astype(np.int64), kind="stable")]
    names[rows[order]] = identities.name[order]
    seen_as = {}
    for category in IDENTITY:
        last = np.full(len(allocations), -1, np.int64)
        mine = found[identities.category[found] == category]
        np.maximum.at(last, rows[mine], identities.position[mine])
        seen_as[category] = last
    # What a caught out-of-memory error freed in a forward would have lived on without it.
    failures = np.flatnonzero(events.action == Action.OOM)
    unwound = np.searchsorted(failures, born) != np.searchsorted(failures, freed)
    unwound &= phases.named(born_in, "forward") & (born_in == died_in)
    facts = Facts(
        allocations=allocations,
        events=count,
        phases=phases,
        born_in=born_in,
        died_in=np.where((freed < count) & ~unwound, died_in, NOWHERE),
        seen_as=seen_as,
        calm=np.searchsorted(allocs, born, side="right") == np.searchsorted(allocs, freed),
    )
    return facts, names


def _row_of(allocations: Allocations, identities: Identities, events: int) -> Ints:
    """The allocation that lived at each sighting's address; -1 if none did."""
    if not len(allocations):
        return np.full(len(identities), -1, np.int64)
    addrs, place = np.unique(allocations.addr, return_inverse=True)
    width = events + 3
    keys = place * width + allocations.born + 1
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(addrs, identities.addr), len(addrs) - 1)
    wanted = at * width + identities.position  # born before the position: born + 1 <= position
    index = np.searchsorted(keys[order], wanted, side="right") - 1
    row = order[np.maximum(index, 0)]
    lives = (
        (index >= 0)
        & (allocations.addr[row] == identities.addr)
        & (allocations.born[row] < identities.position)
        & (allocations.freed[row] >= identities.position)
    )
    return np.where(lives, row, -1)
