"""Find the matrices of attention that no fused kernel computes.

They have a score for each pair of positions. The model's configuration names its attention, and the
names of saved tensors have their shapes: their last two dimensions are equal. Temporaries of the
same modules count that have as many elements.

Eager attention always writes them. torch's own does where no fused kernel of the card takes heads
that share keys and values: in float32 on any card, else on cards before Ampere.
https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import module_in_any_name
from nbmem.report.analysis.library_calls import library_model, name_of_library_model
from nbmem.report.analysis.program_names import largest_model

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

EAGER, FUSED = "eager", "sdpa"
_MATH = " (safe_softmax) "
"""Operator in the names of what torch's attention saves without a fused kernel."""
_REPEATED = (
    "from transformers.integrations import sdpa_attention\n\n"
    "sdpa_attention.use_gqa_in_sdpa = lambda *tensors: False   # repeat keys and values"
)
_HALF = "to(torch.float16)   # this card's fused kernels take no bfloat16"
_AMPERE = (8, 0)
_HEAD = 128
"""Width of a head, which few models exceed."""
_FORM = re.compile(r" \(([\d, ]+)\) (\w+)$")
_WIDTHS = (2, 4)
_MIN_POSITIONS = 256
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
        grouped: Whether the attention is torch's, and heads share keys and values.
        half: Whether the weights are bfloat16, which no fused kernel of the card takes.
    """

    model: Mapping[str, Any]
    rows: Ints
    copies: Ints
    positions: int
    mask_bytes: int
    grouped: bool = False
    half: bool = False

    def still_takes(self, held: int) -> int:
        """Return the bytes at most that fused attention takes instead.

        They are of a mask, or of repeated keys and values.

        Args:
            held: Bytes of the matrices.
        """
        return held * 2 * _HEAD // max(self.positions, 1) if self.grouped else self.mask_bytes

    @property
    def why(self) -> str:
        """The reason why the matrices are there."""
        if self.grouped:
            return "No fused kernel of this card takes heads that share keys and values, so torch"
        return "Eager attention"

    @property
    def code(self) -> str | None:
        """The line that sets another attention; None without a name."""
        inner = library_model(self.model)
        name = None if inner is None else name_of_library_model(self.model, inner)
        if self.grouped and not self.half:
            return _REPEATED
        if name is None:
            return None
        if self.grouped:
            return f"{_REPEATED}\nimport torch\n\n{name}.{_HALF}"
        return (
            f'{name}.set_attn_implementation("sdpa")'
            '   # or attn_implementation="sdpa" where it is made'
        )


def grouped_attention(card_ledger: CardLedger) -> EagerAttention | None:
    """Describe torch's attention of grouped heads, or return None.

    Whether it writes matrices is not looked at.
    """
    model = largest_model(card_ledger.session)
    inner = library_model(model)
    if model is None or inner is None or inner["attention"] != FUSED or not inner.get("grouped"):
        return None
    none = np.zeros(0, np.int64)
    capability = card_ledger.trace.info.capability
    half = capability is not None and capability < _AMPERE and _weights_are_bfloat16(card_ledger)
    return EagerAttention(
        model=model, rows=none, copies=none, positions=0, mask_bytes=0, grouped=True, half=half
    )


def eager_attention(card_ledger: CardLedger) -> EagerAttention | None:
    """Find the matrices of attention without a fused kernel, or None.

    None if the model's attention writes none, or if its class has no other.
    """
    model = largest_model(card_ledger.session)
    inner = library_model(model)
    grouped = grouped_attention(card_ledger)
    if model is None or inner is None:
        return None
    if grouped is None and (inner["attention"] != EAGER or not inner["sdpa"]):
        return None
    place = ".".join(part for part in (model["name"], inner["path"]) if part)
    a, rows, shapes = card_ledger.allocations, list[int](), set[tuple[int, ...]]()
    math_kernel = False
    wanted = np.isin(card_ledger.category, _KINDS) & (
        a.requested >= _MIN_POSITIONS * _MIN_POSITIONS * _WIDTHS[0]
    )
    inside: list[int] = []
    for row in np.flatnonzero(wanted & (a.allocated_at >= 0)).tolist():
        name = card_ledger.name(row) or ""
        if not (module_in_any_name(name) or "").startswith(f"{place}."):
            continue
        math_kernel |= _MATH in name
        shape = _square(name)
        if shape is not None:
            rows.append(row)
            shapes.add(shape)
        else:
            inside.append(row)
    batches = [shape[0] for shape in shapes if len(shape) > _DIMENSIONS]
    if not batches or (grouped is not None and not math_kernel):
        return None
    sizes = {math.prod(shape) * width for shape in shapes for width in _WIDTHS}
    rows += [
        row
        for row in inside
        if int(a.requested[row]) in sizes and not _FORM.search(card_ledger.name(row) or "")
    ]
    positions = max(shape[-1] for shape in shapes)
    found = grouped or EagerAttention(
        model=model, rows=np.zeros(0, np.int64), copies=np.zeros(0, np.int64), positions=0,
        mask_bytes=max(batches) * positions**2 * _WIDTHS[-1],
    )  # fmt: skip
    copies = [row for row in inside if _PRODUCT in (card_ledger.name(row) or "")]
    return replace(
        found,
        rows=np.array(sorted(rows), np.int64),
        copies=np.array([] if grouped else copies, np.int64),
        positions=positions,
    )


def _weights_are_bfloat16(card_ledger: CardLedger) -> bool:
    """Return whether the largest weight is in bfloat16."""
    rows = np.flatnonzero(card_ledger.category == Category.WEIGHTS)
    if not len(rows):
        return False
    largest = int(rows[np.argmax(card_ledger.allocations.requested[rows])])
    return (card_ledger.name(largest) or "").endswith(" bfloat16")


def _square(name: str) -> tuple[int, ...] | None:
    """Return a shape in a name if its last two dimensions are equal and large."""
    match = _FORM.search(name)
    shape = tuple(int(n) for n in match[1].replace(",", " ").split()) if match else ()
    if len(shape) < _DIMENSIONS or shape[-1] != shape[-2] or shape[-1] < _MIN_POSITIONS:
        return None
    return shape
