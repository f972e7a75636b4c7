"""Find the copies of weights that autocast caches in an inference.

Without a graph no probe sees them: they have no Python object. Autocast frees all of them at once,
when its outermost block ends.
https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/autocast_mode.cpp
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import Action
from nbmem.core.session.tensor_names import AUTOCAST_COPY, without_numbers

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.session import Session
    from nbmem.report.ledger.phase_map import PhaseMap

_FULL = " float32"


def autocast_copies(  # noqa: PLR0913 - the facts known at that point
    allocations: Allocations,
    born_in: Ints,
    phases: PhaseMap,
    *,
    unseen: Mask,
    session: Session,
    device: int,
) -> dict[int, str]:
    """Return the names of autocast's copies of weights, by row.

    Args:
        allocations: Every allocation of the recording.
        born_in: Index of the phase in which each was allocated.
        phases: The phases.
        unseen: Which allocations no probe has recorded.
        session: What was recorded.
        device: Index of the card in the session's devices.
    """
    calls = session.facts.get("calls") or []
    dtypes = {call["autocast"] for call in calls if call["autocast"] and not call["grad"]}
    weights = _weights(session, device) if len(dtypes) == 1 else {}
    if not weights:
        return {}
    dtype = str(dtypes.pop())
    candidates = unseen & phases.named(born_in, "inference")
    candidates &= np.isin(allocations.requested, list(weights))
    made = np.flatnonzero(session.devices[device].events.action == Action.ALLOC)
    names: dict[int, str] = {}
    for phase in np.unique(born_in[candidates]).tolist():
        rows = np.flatnonzero(candidates & (born_in == phase))
        # What is freed without an allocation in between is freed at once.
        together = np.searchsorted(made, allocations.freed[rows])
        kinds, count = np.unique(together, return_counts=True)
        rows = rows[together == kinds[int(count.argmax())]]
        for size, texts in weights.items():
            found = rows[allocations.requested[rows] == size].tolist()
            names.update(_matched(found, texts, dtype))
    return names


def _weights(session: Session, device: int) -> dict[int, list[str]]:
    """Return the names of float32 weights, by the bytes of a copy."""
    seen = session.devices[device].storage_labels
    candidates = np.flatnonzero((seen.category == Category.WEIGHTS) & (seen.addr > 0))
    found: dict[int, dict[str, None]] = {}
    for size, name in zip(
        seen.size[candidates].tolist(), seen.name[candidates].tolist(), strict=True
    ):
        text = session.names[name]
        if text.endswith(_FULL):
            found.setdefault(size // 2, {})[text] = None
    return {size: list(texts) for size, texts in found.items()}


def _matched(rows: list[int], texts: list[str], dtype: str) -> dict[int, str]:
    """Name rows after weights, one by one where there are as many."""
    copies = [f"{AUTOCAST_COPY}{text.removesuffix(_FULL)} {dtype}" for text in texts]
    if len(rows) == len(copies):
        return dict(zip(rows, copies, strict=True))
    alike = {without_numbers(copy) for copy in copies}
    return dict.fromkeys(rows, alike.pop()) if len(rows) < len(copies) and len(alike) == 1 else {}
