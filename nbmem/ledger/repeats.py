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
    forwards = [
        rows
        for rows in np.split(order, bounds[1:])
        if len(rows) and phases.named(born_in[rows[:1]], "forward")[0]
    ]
    named = [rows for rows in forwards if np.any(saved[rows] >= 0)]
    known = {allocations.requested[rows].tobytes(): saved[rows] for rows in reversed(named)}
    everywhere = saved.copy()
    for rows in forwards:
        sizes = allocations.requested[rows].tobytes()
        alike = (names for longer, names in known.items() if longer.startswith(sizes))
        names = known[sizes] if sizes in known else next(alike, None)
        if names is not None:
            everywhere[rows] = np.where(saved[rows] < 0, names[: len(rows)], saved[rows])
    return everywhere
