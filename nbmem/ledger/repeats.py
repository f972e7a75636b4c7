"""Names of saved tensors for the forwards whose graph was not read: those that allocate alike."""

from __future__ import annotations

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

    A training loop repeats itself, so the probes read one graph of each kind of forward. Two
    forwards are of one kind here only if every single allocation of theirs has the same size.

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
    forwards = [
        rows
        for rows in np.split(order, bounds[1:])
        if len(rows) and phases.named(born_in[rows[:1]], "forward")[0]
    ]
    known: dict[bytes, Ints] = {}
    for rows in forwards:
        if np.any(saved[rows] >= 0):
            known.setdefault(allocations.requested[rows].tobytes(), saved[rows])
    everywhere = saved.copy()
    for rows in forwards:
        names = known.get(allocations.requested[rows].tobytes())
        if names is not None:
            everywhere[rows] = np.where(saved[rows] < 0, names, saved[rows])
    return everywhere
