"""Eigenvalues of any square matrix.

A check comes first. Results are computed in temporaries and copied at the end.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/BatchLinearAlgebra.cpp
(linalg_eig_out_info, linalg_eig_out, linalg_eigvals)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Executor, Launch, Step, drop, out, temporary
from nbmem.virtual.operators.linalg.pseudo import needs_gradient
from nbmem.virtual.operators.linalg.solving import INT, error_check, matrices, nbytes
from nbmem.virtual.operators.reduce import staging

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def eigvals(tensor: torch.Tensor) -> torch.Tensor:
    """Run `linalg_eigvals`, with vectors only if a gradient needs them."""
    if needs_gradient(tensor):
        return aten.linalg_eig.default(tensor)[0]
    return aten._linalg_eigvals.default(tensor)


def eig(executor: Executor, call: OperatorCall) -> Any:
    """Run `linalg_eig` after the check that all values are finite."""
    with executor:
        finite = torch.isfinite(call.args[0])
        finite.all()
        del finite
    return executor.execute(call)


def eigen_memory(launch: Launch) -> Iterator[Step]:
    """Yield complex temporaries, then the results.

    Of a real matrix there are real vectors, too; its eigenvalues may be complex. Before torch
    2.11 eigenvalues are computed on the CPU, without temporaries on the card.
    """
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
        yield from _complex_check(launch, tensor)
        yield from (drop("real vectors"), drop("parts of values"))
    for number in range(len(launch.outs)):
        yield out(number)
    yield from (drop("vectors"), drop("values"))
    yield from error_check(count)
    yield drop("info")


def _complex_check(launch: Launch, tensor: torch.Tensor) -> Iterator[Step]:
    """Yield the check for imaginary parts that are not zero."""
    imaginary = torch.empty(tensor.size()[:-1], dtype=torch.bool, device="meta")
    yield temporary("are complex", imaginary.numel())
    yield temporary("any is complex", 1)
    yield from staging.staging_steps(imaginary, range(imaginary.dim()), 1, launch.card)
    yield from (drop("any is complex"), drop("are complex"))
