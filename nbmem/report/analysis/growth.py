"""Find what grows from step to step: holder, line and bytes per step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.totals_by_name import group_by_account

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.report.analysis.totals_by_name import Account
    from nbmem.report.ledger.card_ledger import CardLedger

    Ints = NDArray[np.int64]

FEWEST_STEPS = 3
"""Step ends to compare: two differences, so that one jump is no growth."""

NEARLY_EVERY = 0.75
"""Part of the steps in which it must grow: a loop may skip some of them."""

ALIKE = 0.99
"""Part of the largest step's peak from which another step counts as equally large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """An account whose live bytes rise at nearly every step's update.

    They never fall.

    Attributes:
        account: The holder, and what made it.
        slope: Bytes that it grows by in a step (the median of the steps compared).
        steps: How many steps were compared.
        first: Bytes at the update of the first of them.
        last: Bytes at the update of the last of them.
    """

    account: Account
    slope: int
    steps: int
    first: int
    last: int


def find_growth(card_ledger: CardLedger) -> tuple[Growth, ...]:
    """Find what grows from step to step of a recording, steepest first.

    The first step is left out: it allocates gradients, optimizer state and workspaces. Memory that
    a step allocates and the next one replaces does not grow.
    """
    ends = update_positions(card_ledger)[1:]
    if len(ends) < FEWEST_STEPS:
        return ()
    a = card_ledger.allocations
    first = np.searchsorted(ends, a.allocated_at, "right")
    gone = np.searchsorted(ends, a.freed, "right")
    rows = np.flatnonzero(gone > first)
    if not len(rows):
        return ()
    last = np.where(gone[rows] == len(ends), a.block[rows], 0)
    found, index = _by_holder(*group_by_account(card_ledger, rows), last)
    held, asked = (
        _at_ends(size[rows], index, first[rows], gone[rows], (len(found), len(ends)))
        for size in (a.block, a.requested)
    )
    # Allocations that each step replaces may get larger blocks each time: that is no growth.
    more, steps = np.diff(asked, axis=1), np.diff(held, axis=1)
    still = (more >= 0).all(axis=1) & (more[:, -2:] > 0).any(axis=1)
    growing = np.flatnonzero(still & ((more > 0).mean(axis=1) >= NEARLY_EVERY)).tolist()
    lines = [
        Growth(
            account=found[row],
            slope=int(np.median(steps[row])),
            steps=len(ends),
            first=int(held[row, 0]),
            last=int(held[row, -1]),
        )
        for row in growing
    ]
    return tuple(sorted(lines, key=lambda line: -line.slope))


def _at_ends(size: Ints, index: Ints, first: Ints, gone: Ints, shape: tuple[int, int]) -> Ints:
    """Sum the bytes of each account at the end of each step.

    A row counts from the step `first` to the one before `gone`.
    """
    change = np.zeros((shape[0], shape[1] + 1), np.int64)
    np.add.at(change, (index, first), size)
    np.subtract.at(change, (index, gone), size)
    held: Ints = np.cumsum(change, axis=1)[:, :-1]
    return held


def _by_holder(found: list[Account], index: Ints, last: Ints) -> tuple[list[Account], Ints]:
    """Merge the accounts of each holder into one.

    A list is one account, wherever in a step its tensors are allocated. The merged account is the
    one with most of the bytes left at the end (`last`).
    """
    left = np.bincount(index, last, len(found))
    first: dict[str | int, int] = {}
    kept: list[Account] = []
    place = np.zeros(max(1, len(found)), np.int64)
    for at in np.argsort(-left, kind="stable").tolist():
        account = found[at]
        key = at if account.holder is None else account.holder
        if key not in first:
            first[key] = len(kept)
            kept.append(account)
        place[at] = first[key]
    return kept, place[index]


def update_positions(card_ledger: CardLedger) -> Ints:
    """Return where each step's last update began.

    If no optimizer ever stepped, these are the ends of the steps.

    Neither a step's end nor an optimizer's is fixed: what follows counts to it, until the next
    batch or an evaluation. The start of the update is at one point of the code in all steps.
    """
    begins = _by_step(card_ledger, "optimizer", at_end=False)
    return begins if len(begins) else step_ends(card_ledger)


def step_ends(card_ledger: CardLedger) -> Ints:
    """Return the position at which each step ends, ascending."""
    return _by_step(card_ledger, None, at_end=True)


def step_peaks(card_ledger: CardLedger) -> list[int]:
    """Return the peak of allocated bytes in each step.

    The first one includes what came before it.
    """
    ends = pairwise([0, *step_ends(card_ledger).tolist()])
    return [int(card_ledger.allocated[first : last + 1].max()) for first, last in ends]


def steps_are_equal(card_ledger: CardLedger) -> bool:
    """Return whether most steps allocate as much as the largest.

    If so, no batch is the longest.
    """
    tops = step_peaks(card_ledger)
    return 2 * sum(top >= ALIKE * max(tops) for top in tops) > len(tops)


def _by_step(card_ledger: CardLedger, name: str | None, *, at_end: bool) -> Ints:
    """Return where the last phase of each step ends or begins.

    If a name is given, only phases of that name count.
    """
    found: dict[int, int] = {}
    for span in card_ledger.session.spans:
        if span.kind == "phase" and span.step is not None and name in (None, span.name):
            place = card_ledger.bounds(span)[at_end]
            found[span.step] = max(found.get(span.step, 0), place)
    places = np.array([found[step] for step in sorted(found)], np.int64)
    return np.maximum.accumulate(places)  # steps in a file may have any numbers
