"""Recognize a variable that grows in a loop across its allocations.

Examples are `seen = torch.cat([seen, more])` and a cache of keys. Variables are not read in every
pass, and a growing one has another size in each. But each of its allocations is freed as soon as
the next exists, which is larger by the same number of bytes. Allocations that repeat this pattern
belong to one variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.events import BEYOND

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask

NOBODY = -1
MIN_GROWTHS = 3
"""Number of growths that rules out chance."""


def find_growing_variables(
    allocations: Allocations, may_be: Mask, names: Ints, events: int
) -> dict[int, int]:
    """Find the allocations that a growing variable had over time.

    Args:
        allocations: Every allocation of the recording.
        may_be: Mask of those not identified, or identified as a variable's and nothing else.
        names: Index of the variable's name; negative where none is known.
        events: Number of events.

    Returns:
        For each row of a variable, the row that it is named after (possibly itself).
    """
    found: dict[int, int] = {}
    for chain in find_chains(allocations, may_be, events):
        found.update(_nearest(chain, names))
    return found


def find_chains(allocations: Allocations, may_be: Mask, events: int) -> list[list[int]]:
    """Find allocations of which each replaces a smaller one.

    Args:
        allocations: Every allocation of the recording.
        may_be: Mask of those that may be a variable's.
        events: Number of events.

    Returns:
        The rows of each chain, in order.
    """
    before = _before(allocations, may_be & (allocations.addr < BEYOND), events)
    more = np.where(before == NOBODY, 0, allocations.requested - allocations.requested[before])
    again = (before != NOBODY) & (more > 0) & (more == more[before])
    found: list[list[int]] = []
    entered: set[int] = set()
    after = {int(one): row for row, one in enumerate(before.tolist()) if one != NOBODY}
    for row in np.flatnonzero(again).tolist():
        if row in entered:
            continue
        chain = _chain(row, before, after)
        entered.update(chain)
        links = len(chain) - 1
        if links >= MIN_GROWTHS and 2 * int(again[chain].sum()) >= links:
            found.append(chain)
    return found


def _before(a: Allocations, may_be: Mask, events: int) -> Ints:
    """Return for each allocation the smaller one freed right behind it.

    That one is freed before the next allocation is made; NOBODY if there is none. Of several it is
    the largest, then the oldest: a variable's graph may be freed along with it.
    """
    born = np.flatnonzero(a.allocated_at >= 0)
    born = born[np.argsort(a.allocated_at[born], kind="stable")]
    before = np.full(len(a), NOBODY, np.int64)
    if not len(born):
        return before
    gone = np.flatnonzero(may_be & (a.freed < events))
    at = (
        np.searchsorted(a.allocated_at[born], a.freed[gone]) - 1
    )  # the last one allocated before it was freed
    gone, at = gone[at >= 0], at[at >= 0]
    larger = born[at]
    fits = may_be[larger] & (a.requested[gone] < a.requested[larger]) & (larger != gone)
    gone, larger = gone[fits], larger[fits]
    last_counts = np.lexsort((-a.allocated_at[gone], a.requested[gone]))
    before[larger[last_counts]] = gone[last_counts]
    return before


def _chain(row: int, before: Ints, after: dict[int, int]) -> list[int]:
    """Return all allocations of a growing variable, in order."""
    chain = [row]
    while (one := int(before[chain[-1]])) != NOBODY:
        chain.append(one)
    chain.reverse()
    while (next_one := after.get(chain[-1])) is not None:
        chain.append(next_one)
    return chain


def _nearest(chain: list[int], names: Ints) -> dict[int, int]:
    """Map each row of a chain to the nearest named row.

    The next row from it on that has a name, itself included, else the last before it.
    """
    found: dict[int, int] = {}
    known: int | None = None
    for row in (*chain, *reversed(chain)):  # the backward pass comes last and takes precedence
        known = row if names[row] >= 0 else known
        if known is not None:
            found[row] = known
    return found
