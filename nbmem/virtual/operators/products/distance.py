"""Memory of `cdist` and `pdist`: distances between pairs of rows.

Euclidean distances are one product of rows that have their squares beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.virtual.operator_model.operator import BLAS, Operator, drop, out, outs, temporary

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Launch, Step


def euclidean(launch: Launch) -> Iterator[Step]:
    """Yield the squared norms, the widened operands and their product.

    Sums of squares and ones are appended to either side before the product.
    """
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


def cdist_backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradient of `cdist` and a temporary for its pairs.

    Each pair contributes to a row's gradient, and the contributions are added up. With p=0 the
    gradient is 0, without a temporary.
    """
    left, right = launch["x1"], launch["x2"]
    yield from outs(launch)
    if launch["p"] and left.numel() and right.numel():
        yield temporary("of pairs", left.numel() * right.size(-2) * left.element_size())


def pdist_backward(launch: Launch) -> Iterator[Step]:
    """Yield the gradient of `pdist` and a temporary for its pairs.

    Each row is paired with all others. With p=0 the gradient is 0, without a temporary.
    """
    rows = launch["self"]
    yield from outs(launch)
    if launch["p"] and rows.numel() and rows.size(0) > 1:
        yield temporary("of pairs", (rows.size(0) - 1) * rows.numel() * rows.element_size())


OPERATORS = (
    Operator(
        ("_cdist_backward",),
        memory=cdist_backward,
        source="aten/src/ATen/native/cuda/DistanceKernel.cu: cdist_backward_kernel_impl; "
        "Distance.cpp: _cdist_backward",
    ),
    Operator(
        ("_pdist_backward",),
        memory=pdist_backward,
        source="aten/src/ATen/native/cuda/DistanceKernel.cu: pdist_backward_kernel_impl",
    ),
    Operator(
        ("_euclidean_dist",),
        memory=euclidean,
        source="aten/src/ATen/native/Distance.cpp: _euclidean_dist",
    ),
)
