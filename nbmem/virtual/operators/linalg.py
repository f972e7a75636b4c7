"""Linear algebra: shapes that torch has no rule for on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operators.operator import Operator
from nbmem.virtual.tensors.shapes import one, several

if TYPE_CHECKING:
    from nbmem.virtual.tensors.calls import Call
    from nbmem.virtual.tensors.shapes import Results


def geqrf(call: Call) -> Results:
    """The factors in one matrix, and one number for each reflector."""
    tensor = call.args[0]
    *batch, rows, columns = tensor.size()
    return several((tensor.size(), tensor.dtype), ((*batch, min(rows, columns)), tensor.dtype))


def lstsq(call: Call) -> Results:
    """Solution, residuals where there are more equations than unknowns; no rank, no values."""
    left, right = call.args[:2]
    *batch, rows, columns = left.size()
    tail = tuple(right.size()[len(batch) + 1 :])
    residuals = (*batch, *tail) if rows > columns else (0,)
    return several(
        ((*batch, columns, *tail), left.dtype),
        (residuals, left.dtype),
        ((0,), torch.int64),
        ((0,), left.dtype),
    )


def linear_combination(call: Call) -> Results:
    """One row of tensors for each row of coefficients: what matrix_exp adds up."""
    tensor, coefficients = call.args
    return one((coefficients.size(0), *tensor.size()[1:]), tensor.dtype)


OPERATORS = (
    Operator(("geqrf",), shape=geqrf),
    Operator(("linalg_lstsq",), shape=lstsq),
    Operator(("_compute_linear_combination",), shape=linear_combination),
)
