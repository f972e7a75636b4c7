"""Sum live allocations by name, line and category."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import without_numbers, without_shape
from nbmem.report.analysis.source_lines import users_line
from nbmem.report.ledger.allocation_facts import NO_NAME

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A key by which allocations are summed: name, category, phase, line.

    Attributes:
        holder: Name without shape and numbers (`losses[...]`); None if unnamed.
        category: Their category.
        born_in: Name of the phase that made them; None before the recording and between phases.
        line: `file.py:12 in function` that made them; None if no stack was taken.
    """

    holder: str | None
    category: Category
    born_in: str | None
    line: str | None


def group_by_account(card_ledger: CardLedger, rows: Ints) -> tuple[list[Account], Ints]:
    """Group allocations by account.

    Args:
        card_ledger: The card's ledger.
        rows: Allocations.

    Returns:
        The accounts, and for each allocation the index of its own.
    """
    named, name_of = _texts(card_ledger.names[rows], lambda i: _plain(card_ledger.texts[i]))
    placed, place_of = _texts(
        card_ledger.allocations.stack[rows], lambda i: users_line(card_ledger.session.stacks[i])
    )
    born, birth_of = _texts(
        card_ledger.born_in[rows], lambda i: card_ledger.phases.spans[i][1].name
    )
    codes = np.stack(
        [name_of, card_ledger.category[rows].astype(np.int64), birth_of, place_of], axis=1
    )
    kinds, index = np.unique(codes, axis=0, return_inverse=True)
    return [
        Account(
            holder=named[name], category=Category(category), born_in=born[birth], line=placed[place]
        )
        for name, category, birth, place in kinds.tolist()
    ], index.reshape(-1).astype(np.int64)


def bytes_by_account(card_ledger: CardLedger, position: int) -> dict[Account, int]:
    """Sum the block bytes of live allocations at a position, by account."""
    rows = card_ledger.live(position)
    if not len(rows):
        return {}
    found, index = group_by_account(card_ledger, rows)
    held = np.zeros(len(found), np.int64)
    np.add.at(held, index, card_ledger.allocations.block[rows])
    return dict(zip(found, held.tolist(), strict=True))


def _texts(codes: Ints, text: Callable[[int], str | None]) -> tuple[list[str | None], Ints]:
    """Return the distinct texts of some codes, and each code's text index."""
    known, index = np.unique(codes, return_inverse=True)
    texts = [None if code == NO_NAME else text(code) for code in known.tolist()]
    unique = list(dict.fromkeys(texts))
    place = {found: at for at, found in enumerate(unique)}
    return unique, np.array([place[found] for found in texts], np.int64)[index.reshape(-1)]


def _plain(name: str) -> str:
    """Strip the shape and the numbers from a name.

    The result is equal for all steps and for all layers.
    """
    return without_numbers(without_shape(name))
