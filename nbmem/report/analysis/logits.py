"""Find the scores of a vocabulary's words among a card's allocations.

They are what the model's one layer with a row for each word returns, what a loss makes of that, and
the gradients of both. An allocation counts if its last dimension is the number of words. Without a
shape in its name, the name leads to that layer, and its bytes are a multiple of that number.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import module_in_any_name
from nbmem.report.analysis.library_calls import PART
from nbmem.report.analysis.program_names import largest_model

if TYPE_CHECKING:
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
FLOAT32 = 4
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
        return _COPIES * PART * int(self.head["words"]) * FLOAT32

    @property
    def weight_bytes(self) -> int:
        """Bytes of one more gradient of the layer's weight, at most.

        Each part adds its own to the sum of the others.
        """
        return int(self.head["words"]) * int(self.head["width"]) * FLOAT32


def shape_in_name(name: str) -> list[int] | None:
    """Return the shape in a tensor's name; None without any dimension."""
    found = _FORM.search(name)
    sizes = [] if found is None else [int(n) for n in found[1].replace(",", " ").split()]
    return sizes or None


def logits_of(card_ledger: CardLedger) -> Logits | None:
    """Find the scores of the largest model's words, or None.

    A teacher and its student have the same words: then the model is the one that made most of what
    is found. None if the largest model has no layer that scores words, or if nothing large is of
    it.
    """
    model = largest_model(card_ledger.session)
    if model is None or not model.get("head"):
        return None
    words = int(model["head"]["words"])
    models = {
        f"{one['name']}.{one['head']['path']}": one
        for one in (model, *(card_ledger.session.facts.get("modules") or []))
        if one.get("called") and one.get("head") and int(one["head"]["words"]) == words
    }
    candidates = _candidates(card_ledger, [one["head"] for one in models.values()], words)
    rows = [row for row in candidates if _is_of(card_ledger, row, models, words)]
    if not rows:
        return None
    found = np.array(rows, np.int64)
    made: Counter[str] = Counter()
    for row in rows:
        made[module_in_any_name(card_ledger.name(row) or "") or ""] += int(
            card_ledger.allocations.requested[row]
        )
    model = models[max(models, key=lambda place: made[place])]
    head = model["head"]
    return Logits(
        model=model, head=head, rows=found, positions=_positions(card_ledger, found, head)
    )


def _candidates(
    card_ledger: CardLedger, heads: Sequence[Mapping[str, Any]], words: int
) -> list[int]:
    """Return the rows with the bytes of scores of more than one part."""
    a = card_ledger.allocations
    large = (a.requested % (_HALF * words) == 0) & (a.requested > _HALF * words * PART)
    kinds = np.isin(card_ledger.category, _KINDS)
    backward = card_ledger.phases.named(card_ledger.born_in, "backward")
    # In backward, a temporary of the layer may be the gradient of its weight.
    weights = [words * int(h["width"]) * width for h in heads for width in (_HALF, FLOAT32)]
    temporary = card_ledger.category == Category.TEMPORARIES
    weight = backward & temporary & np.isin(a.requested, weights)
    found: list[int] = np.flatnonzero(large & kinds & ~weight & (a.allocated_at >= 0)).tolist()
    return found


def _is_of(card_ledger: CardLedger, row: int, places: Container[str], words: int) -> bool:
    """Return whether a name is of scores, or of a layer that makes them."""
    name = card_ledger.name(row)
    if name is None:
        return False
    shape = shape_in_name(name)
    if shape is not None:
        return shape[-1] == words
    return module_in_any_name(name) in places


def _positions(card_ledger: CardLedger, rows: Ints, head: Mapping[str, Any]) -> int:
    """Return the positions by the forms in the names, or else by the bytes."""
    words = int(head["words"])
    shapes = (shape_in_name(card_ledger.name(row) or "") for row in rows.tolist())
    known = [math.prod(shape) // words for shape in shapes if shape and shape[-1] == words]
    most = int(card_ledger.allocations.requested[rows].max())
    return max(known, default=most // (2 * _HALF * words))
