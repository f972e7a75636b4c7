"""Find the matrices of a transformer's eager attention.

They have a score for each pair of positions. The model's configuration names its attention, and the
names of saved tensors have their shapes: their last two dimensions are equal. Temporaries of the
same modules count that have as many elements.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import module_in_any_name
from nbmem.report.analysis.library_calls import library_model, name_of_library_model
from nbmem.report.analysis.program_names import largest_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from nbmem.report.ledger.card_ledger import CardLedger

    Ints = NDArray[np.int64]

EAGER = "eager"
_FORM = re.compile(r" \(([\d, ]+)\) (\w+)$")
_WIDTHS = (2, 4)
_LEAST = 256
"""Positions below which the matrices are small."""
_PRODUCT = " (bmm) "
"""Operator in the names of what a product of matrices has saved."""
_KINDS = (Category.ACTIVATIONS, Category.TEMPORARIES, Category.OUTPUT_GRADIENTS)
_DIMENSIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerAttention:
    """The allocations that hold a score for each pair of positions.

    Attributes:
        model: The facts of the module that made them.
        rows: The allocations.
        copies: What the products with these matrices save beside them, which fused attention may
            save, too.
        positions: Positions of a sequence, at most.
        mask_bytes: Bytes of a mask for one head, which fused attention may still take.
    """

    model: Mapping[str, Any]
    rows: Ints
    copies: Ints
    positions: int
    mask_bytes: int

    @property
    def code(self) -> str | None:
        """The line that sets another attention; None without a name."""
        inner = library_model(self.model)
        name = None if inner is None else name_of_library_model(self.model, inner)
        if name is None:
            return None
        return (
            f'{name}.set_attn_implementation("sdpa")'
            '   # or attn_implementation="sdpa" where it is made'
        )


def eager_attention(card_ledger: CardLedger) -> EagerAttention | None:
    """Find the matrices of eager attention, or None.

    None if the model's attention is another one, or if its class has no other.
    """
    model = largest_model(card_ledger.session)
    inner = library_model(model)
    if model is None or inner is None or inner["attention"] != EAGER or not inner["sdpa"]:
        return None
    place = ".".join(part for part in (model["name"], inner["path"]) if part)
    a, rows, shapes = card_ledger.allocations, list[int](), set[tuple[int, ...]]()
    wanted = np.isin(card_ledger.category, _KINDS) & (a.requested >= _LEAST * _LEAST * _WIDTHS[0])
    inside: list[int] = []
    for row in np.flatnonzero(wanted & (a.allocated_at >= 0)).tolist():
        name = card_ledger.name(row) or ""
        if not (module_in_any_name(name) or "").startswith(f"{place}."):
            continue
        shape = _square(name)
        if shape is not None:
            rows.append(row)
            shapes.add(shape)
        else:
            inside.append(row)
    batches = [shape[0] for shape in shapes if len(shape) > _DIMENSIONS]
    if not batches:
        return None
    sizes = {math.prod(shape) * width for shape in shapes for width in _WIDTHS}
    rows += [
        row
        for row in inside
        if int(a.requested[row]) in sizes and not _FORM.search(card_ledger.name(row) or "")
    ]
    positions = max(shape[-1] for shape in shapes)
    return EagerAttention(
        model=model,
        rows=np.array(sorted(rows), np.int64),
        copies=np.array(
            [row for row in inside if _PRODUCT in (card_ledger.name(row) or "")], np.int64
        ),
        positions=positions,
        mask_bytes=max(batches) * positions**2 * _WIDTHS[-1],
    )


def _square(name: str) -> tuple[int, ...] | None:
    """Return a shape in a name if its last two dimensions are equal and large."""
    match = _FORM.search(name)
    shape = tuple(int(n) for n in match[1].replace(",", " ").split()) if match else ()
    if len(shape) < _DIMENSIONS or shape[-1] != shape[-2] or shape[-1] < _LEAST:
        return None
    return shape
