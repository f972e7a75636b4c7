"""Find FSDP2 all-gathers and the parameters copied out of each.

A unit's buffer and its unsharded parameters are recognized by the names that the probes
gave them. They are matched to each other by their exact number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import ALL_GATHER, GATHERED, common_path, without_shape

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

_BUFFER, _WHOLE = f" {ALL_GATHER}", f" {GATHERED}"


@dataclass(frozen=True, slots=True)
class Gather:
    """One all-gather of an FSDP unit.

    Attributes:
        unit: What the paths of its parameters have in common: `model.layers.3`.
        phase: Index of the phase in which its parameters became whole.
        buffer: The row of the all-gather's output.
        whole: The rows of the parameters that were copied out of it, in allocation order.
    """

    unit: str
    phase: int
    buffer: int
    whole: tuple[int, ...]


class Move(NamedTuple):
    """A hypothetical change of an allocation's lifetime or size.

    Attributes:
        row: The row of the allocation.
        born: Index of the event that would allocate it; None if it would not exist.
        freed: Index of the event that would free it.
        block: Bytes that it would take; None for the recorded bytes.
    """

    row: int
    born: int | None = None
    freed: int = 0
    block: int | None = None


def find_gathers(card_ledger: CardLedger) -> list[Gather]:
    """Find the all-gathers of a recording whose parameters were seen.

    They are in the order of their parameters.
    """
    a = card_ledger.allocations
    rows = np.flatnonzero(card_ledger.category == Category.COMMUNICATION)
    rows = rows[np.argsort(a.allocated_at[rows], kind="stable")]
    waiting: list[tuple[str, int]] = []
    parts: list[tuple[str, int]] = []
    found: list[Gather] = []
    for row in rows.tolist():
        name = without_shape(card_ledger.name(row) or "")
        if name.endswith(_BUFFER):
            waiting.append((name.removesuffix(_BUFFER), row))
            parts = []
        elif name.endswith(_WHOLE):
            parts.append((name.removesuffix(_WHOLE), row))
            copied = _match_buffer(card_ledger, waiting, parts)
            if copied is not None:
                waiting.remove((copied.unit, copied.buffer))
                found.append(copied)
                parts = []
    return found


def _match_buffer(
    card_ledger: CardLedger, waiting: list[tuple[str, int]], parts: list[tuple[str, int]]
) -> Gather | None:
    """Find the oldest buffer that holds exactly these parameters."""
    size = card_ledger.allocations.requested
    whole = tuple(row for _, row in parts)
    unit, total = common_path(path for path, _ in parts), int(size[list(whole)].sum())
    for name, row in waiting:
        if name == unit and int(size[row]) == total:
            return Gather(unit, int(card_ledger.born_in[whole[0]]), row, whole)
    return None


def allocated_with(card_ledger: CardLedger, moves: Iterable[Move]) -> Ints:
    """Compute the curve of allocated bytes with some allocations moved."""
    a = card_ledger.allocations
    change = np.zeros(card_ledger.events + 2, np.int64)
    for move in moves:
        block = int(a.block[move.row])
        change[max(int(a.allocated_at[move.row]), -1) + 1] -= block
        change[int(a.freed[move.row]) + 1] += block
        if move.born is not None:
            would = block if move.block is None else move.block
            change[move.born + 1] += would
            change[move.freed + 1] -= would
    with_moves: Ints = card_ledger.allocated + np.cumsum(change)[: card_ledger.events + 1]
    return with_moves
