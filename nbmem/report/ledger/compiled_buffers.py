"""Name allocations of compiled regions by their wrappers' buffers.

The probes list what a region's forward and backward allocate, in the order of its wrapper
(capture/graphs/compiled_regions.py). Names are given only if the whole list occurs in order among
the allocations of that time. Allocations between them are a kernel's workspace, or belong to code
that is not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.ledger.phase_map import NOWHERE, PhaseMap

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.session import StorageLabels

_FORWARD_PHASES = ("forward", "load", "input", "inference")


def buffer_names(  # noqa: PLR0913 - the facts known at that point
    allocations: Allocations,
    born_in: Ints,
    phases: PhaseMap,
    storage_labels: StorageLabels,
    *,
    undisturbed: Mask,
    texts: Sequence[str],
) -> dict[int, str]:
    """Return the names of compiled regions' allocations, by row.

    Args:
        allocations: Every allocation of the recording.
        born_in: Index of the phase in which each was allocated.
        phases: The phases.
        storage_labels: What the probes saw. At address 0, where a backward begins, is what the
            regions of its graph allocate: activations in the forward before it, temporaries in the
            backward.
        undisturbed: Mask of those freed before anything else was allocated.
        texts: The texts that the labels' names point into.
    """
    names: dict[int, str] = {}
    for category, phases_of in (
        (Category.ACTIVATIONS, _forward_before),
        (Category.TEMPORARIES, lambda phase, _: [phase]),
    ):
        listed = np.flatnonzero((storage_labels.addr == 0) & (storage_labels.category == category))
        found = phases.of(storage_labels.position[listed])
        for phase in np.unique(found[found != NOWHERE]).tolist():
            of_phase = listed[found == phase]
            rows = np.flatnonzero(np.isin(born_in, phases_of(phase, phases)))
            sizes = allocations.requested[rows]
            for row, one in _match_in_order(
                sizes, storage_labels.size[of_phase], undisturbed[rows]
            ).items():
                names[int(rows[row])] = texts[storage_labels.name[of_phase[one]]]
    return names


def _forward_before(phase: int, phases: PhaseMap) -> list[int]:
    """Return the phases of the forward that precedes a backward."""
    found: list[int] = []
    while phase > 0 and phases.names[phase - 1] in _FORWARD_PHASES:
        phase -= 1
        found.append(phase)
    return found


def _match_in_order(sizes: Ints, listed: Ints, undisturbed: Mask) -> dict[int, int]:
    """Match allocations with a list of sizes that occurs among them in order.

    A match counts only if the earliest and the latest alignment agree. The first launch of a kernel
    makes copies to time it, which are freed before anything else is allocated. So a second attempt
    leaves such allocations out.

    Returns:
        For each certain allocation its index in the list.
    """
    certain: dict[int, int] = {}
    for considered in (np.ones(len(sizes), bool), ~undisturbed):
        at = np.flatnonzero(considered)
        early = _earliest(sizes[at], listed)
        late = _earliest(sizes[at][::-1], listed[::-1])
        if early is None or late is None:
            continue
        for one, (first, last) in enumerate(zip(early, reversed(late), strict=True)):
            if first == len(at) - 1 - last:
                certain.setdefault(int(at[first]), one)
    return certain


def _earliest(sizes: Ints, listed: Ints) -> list[int] | None:
    """Find the earliest index of each listed size, in order.

    Returns None if not all of the list is found.
    """
    found: list[int] = []
    remaining = enumerate(sizes.tolist())
    for wanted in listed.tolist():
        at = next((at for at, size in remaining if size == wanted), None)
        if at is None:
            return None
        found.append(at)
    return found
