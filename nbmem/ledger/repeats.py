"""Names of saved tensors for the forwards whose graph was not read: those that allocate alike."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from nbmem.ledger.phase_map import NOWHERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.allocator.follow import Allocations
    from nbmem.ledger.phase_map import PhaseMap

    Ints = NDArray[np.int64]


def repeated(saved: Ints, allocations: Allocations, born_in: Ints, phases: PhaseMap) -> Ints:
    """The same names for every forward that takes the same sizes in the same order.

    A training loop repeats itself, so the probes read one graph of each kind of forward. Another
    one is of that kind here only if every single allocation of its own has the same size; it may be
    shorter, since one that runs out of memory has no backward at all.

    Args:
        saved: Index of each allocation's name as a saved tensor, negative if it has none.
        allocations: The recording's allocations, in the order of birth.
        born_in: Index of the phase of each one's birth.
        phases: The phases.

    Returns:
        `saved` with those of the other forwards.
    """
    order = np.argsort(born_in, kind="stable")  # within a phase by birth
    bounds = np.flatnonzero(np.diff(born_in[order], prepend=NOWHERE - 1))
    if not len(bounds):
        return saved.copy()
    groups = np.split(order, bounds[1:])
    are_forwards = phases.named(born_in[order[bounds]], "forward")
    forwards = [rows for rows, is_forward in zip(groups, are_forwards, strict=True) if is_forward]
    names_of = np.maximum.reduceat(saved[order], bounds)[are_forwards] >= 0
    named = [rows for rows, has_names in zip(forwards, names_of, strict=True) if has_names]
    known = {allocations.requested[rows].tobytes(): saved[rows] for rows in reversed(named)}
    ordered = sorted(known)  # by the sizes' bytes: what begins alike lies together
    everywhere = saved.copy()
    for rows in forwards:
        sizes = allocations.requested[rows].tobytes()
        at = bisect_left(ordered, sizes)  # itself, or a longer one that begins like it
        if at < len(ordered) and ordered[at].startswith(sizes):
            names = known[ordered[at]]
            everywhere[rows] = np.where(saved[rows] < 0, names[: len(rows)], saved[rows])
    return everywhere
