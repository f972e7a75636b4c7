"""Eigenvalues of any square matrix: what is asked before, made aside, and brought over at the end.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/BatchLinearAlgebra.cpp
(linalg_eig_out_info, linalg_eig_out, linalg_eigvals)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import drop, out, temporary
from nbmem.virtual.operators.linalg.pseudo import is_learned
from nbmem.virtual.operators.linalg.solving import INT, checked, matrices, nbytes
from nbmem.virtual.operators.reduce import staging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operator_model.operator import Executor, Launch, Step
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def values_alone(tensor: torch.Tensor) -> torch.Tensor:
    """`linalg_eigvals`: with the vectors only where a gradient needs them."""
    if is_learned(tensor):
        return aten.linalg_eig.default(tensor)[0]
    return aten._linalg_eigvals.default(tensor)


def with_vectors(executor: Executor, call: OperatorCall) -> Any:
    """`linalg_eig` asks first whether all is finite."""
    with executor:
        finite = torch.isfinite(call.args[0])
        finite.all()
        del finite
    return executor.execute(call)


def eigen(launch: Launch) -> Iterator[Step]:
    """Complex results aside; of a real matrix real vectors, whose values may turn out complex."""
    tensor = launch.call.args[0]
    complexes = 2 - tensor.is_complex()
    values = tensor.numel() // max(1, tensor.size(-1)) * tensor.element_size() * complexes
    vectors = len(launch.outs) == 2
    count = max(1, matrices(tensor))
    if not launch.rules.eigenvalues_on_card:
        return
    yield temporary("info", count * INT)
    if vectors:
        yield temporary("vectors", nbytes(tensor) * complexes)
    yield temporary("values", values)
    if not tensor.is_complex():
        yield temporary("parts of values", values)
    yield temporary("copy", nbytes(tensor))
    if vectors and not tensor.is_complex():
        yield temporary("real vectors", nbytes(tensor))
    yield drop("copy")
    if not tensor.is_complex():
        yield from _asked_whether_complex(launch, tensor)
        yield from (drop("real vectors"), drop("parts of values"))
    for number in range(len(launch.outs)):
        yield out(number)
    yield from (drop("vectors"), drop("values"))
    yield from checked(count)
    yield drop("info")


def _asked_whether_complex(launch: Launch, tensor: torch.Tensor) -> Iterator[Step]:
    """Whether any imaginary part is not zero."""
    imaginary = torch.empty(tensor.size()[:-1], dtype=torch.bool, device="meta")
    yield temporary("are complex", imaginary.numel())
    yield temporary("any is complex", 1)
    yield from staging.shared(imaginary, range(imaginary.dim()), 1, launch.card)
    yield from (drop("any is complex"), drop("are complex"))
