"""Name a backward's allocations after the gradients expected of its graph.

The probes list the gradients that a backward will allocate, with their bytes, in the engine's order
(capture/graphs/expected_gradients.py). Where a size has as many allocations as are listed, they
match in order. Otherwise only a common name is certain: the module with results of that size. A sum
of two gradients of one result may be computed in place, so it is listed as possible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import (
    ADDED_TO,
    BACKWARD_OF,
    GRADIENT_IN,
    GRADIENT_OF,
    without_numbers,
)
from nbmem.report.ledger.phase_map import NOWHERE, PhaseMap

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.session import StorageLabels

_PARTS = re.compile(r"(\S+)(?: \([^()]+\))?( \([\d, ]*\) \w+)$")


def gradient_names(  # noqa: PLR0913 - the facts known at that point
    allocations: Allocations,
    born_in: Ints,
    phases: PhaseMap,
    storage_labels: StorageLabels,
    *,
    of_parameters: Mask,
    texts: Sequence[str],
) -> dict[int, str]:
    """Return the names of a backward's allocations, by row.

    Args:
        allocations: Every allocation of the recording.
        born_in: Index of the phase in which each was allocated.
        phases: The phases.
        storage_labels: What the probes saw; at address 0 what was about to be allocated.
        of_parameters: Which allocations were seen as gradients of parameters.
        texts: The texts that the labels' names point into.
    """
    expected = (Category.GRADIENTS, Category.OUTPUT_GRADIENTS)
    listed = np.flatnonzero((storage_labels.addr == 0) & np.isin(storage_labels.category, expected))
    within = phases.of(storage_labels.position[listed])
    names: dict[int, str] = {}
    for phase in np.unique(within[within != NOWHERE]).tolist():
        of_phase = listed[within == phase]
        rows = np.flatnonzero(born_in == phase)
        sizes = storage_labels.size[of_phase]
        for size in np.unique(sizes).tolist():
            found = rows[allocations.requested[rows] == size]
            words = [texts[name] for name in storage_labels.name[of_phase[sizes == size]].tolist()]
            names.update(_matched(found.tolist(), words, of_parameters))
    return names


def _matched(rows: list[int], words: list[str], of_parameters: Mask) -> dict[int, str]:
    """Match allocations of one size with the listed gradients of that size.

    Both are in order. If their numbers differ, a name common to all listed is given, if there is
    one.
    """
    certain = [word for word in words if not word.startswith(GRADIENT_IN)]
    for listed in (certain, [_allocated_name(word) for word in words]):
        pairs = list(zip(rows, listed, strict=False))
        known = (_is_added(word) for row, word in pairs if of_parameters[row])
        if len(rows) == len(listed) and all(known):
            return {row: word for row, word in pairs if word and not of_parameters[row]}
    if len(certain) <= len(rows) <= len(words):  # some of the sums were computed in place
        distinct = {without_numbers(_allocated_name(word)) for word in words}
        if len(distinct) == 1 and _is_added(word := distinct.pop()) and word:
            return {row: word for row in rows if not of_parameters[row]}
    named = [_allocated_name(word) for word in words if not _is_added(_allocated_name(word))]
    common = _common_name(named, is_partial=len(rows) > len(words)) if named else None
    return {} if common is None else {row: common for row in rows if not of_parameters[row]}


def _allocated_name(word: str) -> str:
    """Return the name of a gradient that has its own memory."""
    if word.startswith(f"{GRADIENT_IN}{ADDED_TO}"):
        return word.removeprefix(GRADIENT_IN)
    return word.replace(GRADIENT_IN, GRADIENT_OF, 1)


def _is_added(word: str) -> bool:
    """Return True if a name is that of an addition to a parameter's gradient.

    Recordings of older versions have an empty name for it.
    """
    return not word or word.startswith(ADDED_TO)


def _common_name(names: Sequence[str], *, is_partial: bool) -> str | None:
    """Return what all of some gradient names have in common, or None.

    An example is `gradient in model.h.* (8, 1024, 768) float32`.

    Args:
        names: Gradients of one size.
        is_partial: True if some of the allocations are none of them. Then only the module whose
            backward made them is certain.
    """
    found = [match for name in names if (match := _PARTS.match(name.removeprefix(GRADIENT_OF)))]
    paths = [without_numbers(match[1]).split(".") for match in found]
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    shared = ".".join(parts[0] for parts in same)
    forms = {match[2] for match in found}
    if not shared or len(found) < len(names):
        return None
    form = forms.pop() if len(forms) == 1 and not is_partial else ""
    return f"{BACKWARD_OF if is_partial else GRADIENT_IN}{shared}{form}"
