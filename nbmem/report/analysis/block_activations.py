"""Find what each of a model's repeated blocks keeps for backward, by name.

An activation's name says which module saved it: `saved by model.layers.3.mlp.down_proj`. Blocks
need not be equal: what has no such name is left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import module_in_any_name
from nbmem.report.analysis.library_calls import checkpointing_call
from nbmem.report.analysis.program_names import blocks_of, checkpoint_code

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

_MAX_ROWS = 20_000
"""Activations whose names are read, the largest."""
_BACKEND_LISTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockActivations:
    """Activations of the blocks that one call would checkpoint.

    Attributes:
        path: The path of the list of blocks in the model that keeps most; empty for all blocks.
        kind: The class of its blocks.
        blocks: The allocations of each block in each forward, in the order of allocation.
        code: The lines that checkpoint the blocks; None if the program has no name for them.
    """

    path: str
    kind: str
    blocks: tuple[Ints, ...]
    code: str | None

    @property
    def rows(self) -> Ints:
        """All of the blocks' allocations."""
        return np.concatenate(self.blocks)

    @property
    def first(self) -> Ints:
        """The first allocation of each block, at least as large as its input."""
        return np.array([rows[0] for rows in self.blocks], np.int64)


def block_activations(
    card_ledger: CardLedger, model: Mapping[str, Any], *, every: bool = False
) -> BlockActivations | None:
    """Find what the blocks keep that checkpointing would recompute, or None.

    With a library's own call these are the blocks of all lists, else those of the list that keeps
    most.

    Args:
        card_ledger: The card's ledger.
        model: The facts of the module.
        every: Whether the blocks of all lists are checkpointed in any case.
    """
    lists = _outermost(model.get("blocks") or [])
    if not lists:
        return None
    places = _places(card_ledger)
    found: list[tuple[Mapping[str, Any], list[Ints]]] = [
        (one, _blocks(card_ledger, places, f"{model['name']}.{one['path']}".rstrip(".")))
        for one in lists
    ]
    found = [(one, blocks) for one, blocks in found if blocks]
    if not found:
        return None
    size = card_ledger.allocations.block
    found.sort(key=lambda pair: -int(size[np.concatenate(pair[1])].sum()))
    largest, blocks = found[0]
    path = str(largest["path"])
    own = checkpointing_call(model, path)
    if own is not None or every:
        blocks = [rows for _, rows_of in found for rows in rows_of]
    code = own or checkpoint_code(blocks_of(model, path))
    return BlockActivations(
        path="" if own is not None or every else path,
        kind=str(largest["class"]),
        blocks=tuple(blocks),
        code=code,
    )


def _outermost(lists: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Leave out lists that lie in a block of another one."""
    found: list[Mapping[str, Any]] = []
    for one in lists:
        path = str(one["path"])
        if not any(path.startswith(f"{other['path']}.") for other in found):
            found.append(one)
    return found[:_BACKEND_LISTS]


def _places(card_ledger: CardLedger) -> dict[str, list[int]]:
    """Return the rows of activations by the module in their names."""
    a = card_ledger.allocations
    rows = np.flatnonzero((card_ledger.category == Category.ACTIVATIONS) & (a.allocated_at >= 0))
    rows = rows[np.argsort(-a.block[rows], kind="stable")][:_MAX_ROWS]
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows.tolist():
        name = card_ledger.name(row)
        place = None if name is None else module_in_any_name(name)
        if place is not None:
            found[place].append(row)
    return found


def _blocks(card_ledger: CardLedger, places: Mapping[str, list[int]], path: str) -> list[Ints]:
    """Return the rows of each block of a list, for each forward apart."""
    inside = re.compile(rf"{re.escape(path)}\.(\d+)(?:\.|$)")
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, rows in places.items():
        match = inside.match(place)
        for row in rows if match else ():
            found[int(card_ledger.born_in[row]), int(match[1]) if match else 0].append(row)
    order = card_ledger.allocations.allocated_at
    return [
        np.array(sorted(rows, key=lambda r: int(order[r])), np.int64) for rows in found.values()
    ]
