"""Distances between all pairs of rows: one product of rows with their squares beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.operators.operator import BLAS, Operator, drop, out, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step


def euclidean(launch: Launch) -> Iterator[Step]:
    """Sums of squares and ones are appended to either side before the product."""
    for side in ("x1", "x2"):
        rows, item = launch[side], launch[side].element_size()
        count = rows.numel() // rows.size(-1)
        yield temporary(f"{side} squares", rows.numel() * item)
        yield temporary(f"{side} norms", count * item)
        yield drop(f"{side} squares")
        yield temporary(f"{side} ones", count * item)
    for side in ("x1", "x2"):
        rows, item = launch[side], launch[side].element_size()
        count = rows.numel() // rows.size(-1)
        if side == "x1":
            yield temporary("doubled", rows.numel() * item)
        yield temporary(f"{side} with squares", (rows.numel() + 2 * count) * item)
        for name in ("x1 ones", "x1 norms", "doubled") if side == "x1" else ("x2 norms", "x2 ones"):
            yield drop(name)
    yield out()
    yield BLAS


OPERATORS = (
    Operator(
        ("_euclidean_dist",),
        memory=euclidean,
        source="aten/src/ATen/native/Distance.cpp: _euclidean_dist",
        shown_by="none of the H100's runs has one",
    ),
)
