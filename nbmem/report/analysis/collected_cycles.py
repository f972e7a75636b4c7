"""Find memory that was garbage at the peak, until a collection freed it.

Reference counts free nothing of a reference cycle; only the garbage collector does, at a time of
its own. When such memory was last used is not recorded. It is counted from the moment at which the
program made its successor: an allocation of the same name and size, in a later pass of the loop. An
inference has no graph that keeps what it makes, so the successor may be of the same pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.ledger.observations import NO_NAME
from nbmem.report.ledger.phase_map import NOWHERE

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

_LASTING = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
)
"""Categories whose successor is the next of the same name, also in the same pass."""
_KEPT = -1
"""Collection of what none has freed."""
_COLLECTIONS = 3
"""Collections that freed different numbers of a loop's tensors, and so came at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedCycles:
    """Memory that collections freed, and the garbage at the peak.

    Attributes:
        freed: Bytes of all blocks that collections freed.
        rows: The allocations that were garbage at the peak, largest first; of equal ones those with
            names.
        at_peak: Bytes of their blocks.
        low: By how much the peak is lower without garbage, if each is replaced by its successor.
        high: The same, if each goes out of use before the next pass begins.
    """

    freed: int
    rows: Ints
    at_peak: int
    low: int
    high: int


def find_collected_cycles(card_ledger: CardLedger, dead: Ints, top: int) -> CollectedCycles | None:
    """Find the garbage that reference cycles kept at the peak.

    Args:
        card_ledger: The card's ledger.
        dead: Rows that lived at the end, but that nothing reached any more.
        top: Position of the peak.

    Returns:
        It; None if collections were not recorded or freed nothing.
    """
    a, collected = card_ledger.allocations, card_ledger.trace.collected
    if collected is None or not len(collected.event):
        return None
    number = np.full(len(a), _KEPT, np.int64)
    place = np.searchsorted(collected.event, a.freed)
    place[place == len(collected.event)] = 0
    freed = collected.event[place] == a.freed
    number[freed] = collected.collection[place[freed]]
    since, at_least = _garbage_since(card_ledger, number, dead)
    rows = np.flatnonzero((since < top) & (a.freed >= top))
    return CollectedCycles(
        freed=int(a.block[freed].sum()),
        rows=rows[np.lexsort((card_ledger.names[rows] == NO_NAME, -a.block[rows]))],
        at_peak=int(a.block[rows].sum()),
        low=_saved(card_ledger, since),
        high=_saved(card_ledger, at_least),
    )


def _saved(card_ledger: CardLedger, since: Ints) -> int:
    """Return by how much the peak is lower if rows are freed at some events."""
    selected = np.flatnonzero(since < card_ledger.allocations.freed)
    without = card_ledger.allocated_without(selected, since[selected])
    return int(card_ledger.allocated.max() - without.max())


def _garbage_since(card_ledger: CardLedger, number: Ints, dead: Ints) -> tuple[Ints, Ints]:
    """Return since which event each row was garbage: latest and earliest.

    That is its successor's allocation, or the one before the successor's pass begins. For a row
    without a successor it is the last event.
    """
    a, phases = card_ledger.allocations, card_ledger.phases
    since = np.full(len(a), card_ledger.events, np.int64)
    earliest = since.copy()
    begins: dict[int, int] = {}
    for index, one in enumerate(phases.passes):
        begins.setdefault(one, phases.bounds(index)[0] - 1)
    lost = number != _KEPT
    lost[dead] = True
    for group in _groups(card_ledger, np.flatnonzero(lost)):
        rows, after = group.rows, _successors(card_ledger, group, number, dead)
        if after is not None:
            selected = np.flatnonzero(lost[rows] & (after < len(rows)))
            since[rows[selected]] = earliest[rows[selected]] = a.allocated_at[rows[after[selected]]]
            if group.passes is not None and not group.lasting:
                later = selected[group.passes[after[selected]] > group.passes[selected]]
                first = [begins[one] for one in group.passes[after[later]].tolist()]
                earliest[rows[later]] = np.minimum(since[rows[later]], first)
    return since, earliest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Allocations of one name, size, category and phase, in their order.

    Attributes:
        rows: The allocations.
        lasting: Whether each replaces the one before: weights of one name.
        inference: Whether an inference made them.
        passes: The pass of each, ascending; None outside of a loop.
    """

    rows: Ints
    lasting: bool
    inference: bool
    passes: Ints | None


def _groups(card_ledger: CardLedger, wanted: Ints) -> Iterator[_Group]:
    """Yield the groups that have one of some rows."""
    a = card_ledger.allocations
    rows = np.flatnonzero(np.isin(a.requested, np.unique(a.requested[wanted])))
    born_in, names = card_ledger.born_in[rows], card_ledger.names[rows]
    phases = np.where(born_in == NOWHERE, "", card_ledger.phases.names[np.maximum(born_in, 0)])
    phases[phases == "load"] = "input"
    phase = np.unique(phases, return_inverse=True)[1]
    category = card_ledger.category[rows].astype(np.int64)
    lasting = np.isin(category, _LASTING) & (names != NO_NAME)
    phase[lasting] = 0
    keys = np.stack([names, a.requested[rows], category, phase], axis=1)
    group = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    passes = np.array([*card_ledger.phases.passes, -1], np.int64)[born_in]  # NOWHERE is -1
    order = np.argsort(group, kind="stable")
    chosen = np.isin(rows, wanted)
    for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(part) > 1 and chosen[part].any():
            in_loop = bool((passes[part] >= 0).any())  # the first batch comes before the first
            yield _Group(
                rows=rows[part],
                lasting=bool(lasting[part[0]]),
                inference=bool(phases[part[0]] == "inference"),
                passes=np.maximum.accumulate(passes[part]) if in_loop else None,
            )


def _successors(card_ledger: CardLedger, group: _Group, number: Ints, dead: Ints) -> Ints | None:
    """Return the place in a group of what each row was replaced by.

    It is the length of the group for the last ones. None if they may all have been in use until a
    program let go of them.
    """
    rows, stayed, at_any_time = group.rows, *_collections(card_ledger, group.rows, number)
    if group.lasting:
        proven = stayed > 0 or np.isin(rows, dead).any()
        return np.arange(1, len(rows) + 1) if proven else None
    if group.passes is not None:
        proven = stayed > 0 or at_any_time or np.isin(rows, dead).any()
        later = np.searchsorted(group.passes, group.passes, side="right")
        if group.inference and at_any_time:
            later = np.minimum(later, np.arange(len(rows)) + max(stayed, 1))
        return later if proven else None
    # Nodes of a tree do not replace each other. As many as ever stayed may be in use.
    return np.minimum(np.arange(len(rows)) + stayed, len(rows)) if stayed else None


def _collections(card_ledger: CardLedger, rows: Ints, number: Ints) -> tuple[int, bool]:
    """Return what the collections show that freed some rows of a group.

    Returns:
        How many younger ones stayed, at most. And whether collections freed different numbers of
        them, as happens where Python decides when to collect; a program that keeps them on purpose
        and then lets go of all does not.
    """
    a = card_ledger.allocations
    counts: list[int] = []
    stayed = 0
    for one in np.unique(number[rows]).tolist():
        freed = rows[number[rows] == one]
        if one == _KEPT:
            continue
        at = int(a.freed[freed].min())
        younger = (rows > freed.min()) & (a.allocated_at[rows] < at)
        younger &= (number[rows] != one) & (a.freed[rows] > at)
        stayed = max(stayed, int(younger.sum()))
        if (a.allocated_at[rows] > at).any():
            counts.append(len(freed))
    return stayed, len(counts) >= _COLLECTIONS and len(set(counts)) > 1
