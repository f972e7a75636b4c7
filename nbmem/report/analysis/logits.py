"""Find the scores of a vocabulary's words among a card's allocations.

They are what the model's one layer with a row for each word returns, what a loss makes of that, and
the gradients of both. An allocation counts if its last dimension is the number of words. Without a
shape in its name, the name leads to that layer, and its bytes are a multiple of that number.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import module_in_any_name
from nbmem.report.analysis.library_calls import PART
from nbmem.report.analysis.program_names import largest_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

_KINDS = (
    Category.ACTIVATIONS,
    Category.OUTPUT_GRADIENTS,
    Category.TEMPORARIES,
    Category.USER_TENSORS,
)
_FORM = re.compile(r" \(([\d, ]+)\) \w+")
_COPIES = 3
"""Tensors of one part's scores that live at once: the scores, their log-softmax, a gradient."""
_FLOAT32 = 4
_HALF = 2
"""Bytes of the smallest numbers in which scores are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """The allocations that hold scores of words.

    Attributes:
        model: The facts of the module that made them.
        head: The facts of its layer that scores words.
        rows: The allocations, in the order of allocation.
        positions: Positions that one of them has scores for, at most.
    """

    model: Mapping[str, Any]
    head: Mapping[str, Any]
    rows: Ints
    positions: int

    @property
    def parts(self) -> int:
        """Into how many parts their positions are cut."""
        return math.ceil(self.positions / PART)

    @property
    def part_bytes(self) -> int:
        """Bytes that one part takes at most, with its log-softmax and gradient."""
        return _COPIES * PART * int(self.head["words"]) * _FLOAT32

    @property
    def weight_bytes(self) -> int:
        """Bytes of one more gradient of the layer's weight, at most.

        Each part adds its own to the sum of the others.
        """
        return int(self.head["words"]) * int(self.head["width"]) * _FLOAT32


def logits_of(card_ledger: CardLedger) -> Logits | None:
    """Find the scores of the largest model's words, or None.

    None if the model has no layer that scores words, or if nothing large is of it.
    """
    model = largest_model(card_ledger.session)
    head = None if model is None else model.get("head")
    if model is None or not head:
        return None
    place = f"{model['name']}.{head['path']}"
    words = int(head["words"])
    candidates = _candidates(card_ledger, head)
    rows = [row for row in candidates if _is_of(card_ledger, row, place, words)]
    if not rows:
        return None
    found = np.array(rows, np.int64)
    return Logits(
        model=model, head=head, rows=found, positions=_positions(card_ledger, found, head)
    )


def _candidates(card_ledger: CardLedger, head: Mapping[str, Any]) -> list[int]:
    """Return the rows with the bytes of scores of more than one part."""
    a, words = card_ledger.allocations, int(head["words"])
    large = (a.requested % (_HALF * words) == 0) & (a.requested > _HALF * words * PART)
    kinds = np.isin(card_ledger.category, _KINDS)
    backward = card_ledger.phases.named(card_ledger.born_in, "backward")
    # In backward, a temporary of the layer may be the gradient of its weight.
    weights = [words * int(head["width"]) * width for width in (_HALF, _FLOAT32)]
    temporary = card_ledger.category == Category.TEMPORARIES
    weight = backward & temporary & np.isin(a.requested, weights)
    found: list[int] = np.flatnonzero(large & kinds & ~weight & (a.allocated_at >= 0)).tolist()
    return found


def _is_of(card_ledger: CardLedger, row: int, place: str, words: int) -> bool:
    """Return whether a name has the shape of scores, or leads to the layer."""
    name = card_ledger.name(row)
    if name is None:
        return False
    shape = _FORM.search(name)
    if shape is not None:
        return int(shape[1].replace(",", " ").split()[-1]) == words
    return module_in_any_name(name) == place


def _positions(card_ledger: CardLedger, rows: Ints, head: Mapping[str, Any]) -> int:
    """Return the positions by the forms in the names, or else by the bytes."""
    words = int(head["words"])
    shapes = (_FORM.search(card_ledger.name(row) or "") for row in rows.tolist())
    sizes = [[int(n) for n in shape[1].replace(",", " ").split()] for shape in shapes if shape]
    known = [math.prod(shape) // words for shape in sizes if shape and shape[-1] == words]
    most = int(card_ledger.allocations.requested[rows].max())
    return max(known, default=most // (2 * _HALF * words))
