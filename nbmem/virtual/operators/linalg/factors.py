"""Factors of matrices: temporaries, pivots and error codes.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/BatchLinearAlgebra.cpp,
LinearAlgebra.cpp
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nbmem.virtual.operator_model.operator import Launch, Step, drop, out, outs, temporary
from nbmem.virtual.operators.linalg.solving import (
    INT,
    LONG,
    error_check,
    factor_steps,
    matrices,
    nbytes,
    pointers,
    reflector_steps,
)

aten = torch.ops.aten


def lu_factor(launch: Launch) -> Iterator[Step]:
    """Yield factors, pivots and error codes."""
    yield from outs(launch)
    yield from factor_steps(launch["A"])


def _permutation(launch: Launch, rows: int, count: int) -> Iterator[Step]:
    """Yield the range by which pivots become a permutation.

    For several matrices it is repeated.
    """
    yield temporary("range", rows * LONG)
    if count > 1:
        yield temporary("ranges", count * rows * LONG)
    yield from (drop("range"), drop("ranges"))


def lu_unpack(launch: Launch) -> Iterator[Step]:
    """Yield the permutation's matrix and the two triangles."""
    yield from outs(launch)
    packed = launch["LU_data"]
    if launch["unpack_pivots"]:
        yield from _permutation(launch, packed.size(-2), matrices(packed))


def lu(launch: Launch) -> Iterator[Step]:
    """Yield the results, and the factors that are unpacked into them."""
    yield from outs(launch)
    tensor = launch["A"]
    count, (rows, columns) = matrices(tensor), tensor.size()[-2:]
    if count:
        yield temporary("factors", nbytes(tensor))
        yield temporary("pivots", count * min(rows, columns) * INT)
        yield temporary("info", count * INT)
        yield from factor_steps(tensor)
        yield drop("factors")
    if launch["pivot"]:
        yield from _permutation(launch, rows, count)
    yield from (drop("info"), drop("pivots"))


def cholesky(launch: Launch) -> Iterator[Step]:
    """Yield the factor; torch.cholesky also checks the error code at once."""
    yield from outs(launch)
    tensor = launch["self"]
    count = matrices(tensor)
    whole = launch.call.func._schema.name == "aten::cholesky"  # gone in torch 2.14
    if not tensor.numel():
        return
    if whole:
        yield temporary("info", count * INT)
    if count > 1:
        yield from pointers(tensor)
    if whole:
        yield from error_check(count)


def eigh(launch: Launch) -> Iterator[Step]:
    """Yield the vectors, as temporaries if not wanted, and the values."""
    tensor = launch["A"]
    if launch["compute_v"]:
        yield from (out(1), out(0))
    else:
        yield from outs(launch)
        if tensor.numel():
            yield temporary("vectors", nbytes(tensor))
    if tensor.numel():
        yield temporary("info", matrices(tensor) * INT)
        yield from error_check(matrices(tensor))
        yield from (drop("info"), drop("vectors"))


SMALL = 32
"""Rows and columns up to which matrices are decomposed together, into square vectors."""


def svd(launch: Launch) -> Iterator[Step]:
    """Yield vectors and values, and a copy that the kernel destroys.

    Vectors that the kernel cannot write into the results are temporaries.
    """
    tensor = launch["A"]
    vectors = launch["compute_uv"]
    order = (0, 2, 1) if len(launch.outs) == 3 and vectors else range(len(launch.outs))
    yield from (out(number) for number in order)
    if not tensor.numel():
        return
    yield temporary("info", matrices(tensor) * INT)
    yield temporary("copy", nbytes(tensor))
    aside = _vectors_aside(launch)
    for name, size in aside.items():
        yield temporary(name, size * tensor.element_size())
    for name in (*reversed(aside), "copy"):
        yield drop(name)
    yield from error_check(matrices(tensor))


def _vectors_aside(launch: Launch) -> dict[str, int]:
    """Return the elements of temporary vectors and values, by name.

    A kernel cannot write these into the results (svd_cusolver_gesvd, _gesvdj).
    """
    tensor = launch["A"]
    rows, columns = tensor.size()[-2:]
    few = min(rows, columns)
    if launch["driver"] == "gesvd":
        return {"values": few, "right": few * few}
    if launch["driver"] == "gesvda":
        return {}
    together = max(rows, columns) <= SMALL
    if not launch["compute_uv"]:
        if together:
            count = matrices(tensor)
            return {"left": count * rows * rows, "right": count * columns * columns}
        return {"left": rows * few, "right": columns * few}
    if together and rows != columns and not launch["full_matrices"]:
        return {"whole": matrices(tensor) * max(rows, columns) ** 2}
    return {}


def determinant(launch: Launch) -> Iterator[Step]:
    """Yield the factors and the sign of the permutation.

    The product of the diagonal is in the result.
    """
    yield from outs(launch)
    tensor = launch["A"]
    yield temporary("info", matrices(tensor) * INT)
    yield from factor_steps(tensor)
    yield temporary("sign", matrices(tensor) * tensor.element_size())
    yield from _swaps(tensor)
    yield from (drop("swaps"), drop("sign"), drop("info"))


def log_determinant(launch: Launch) -> Iterator[Step]:
    """Yield the factors, and signs and logarithms of the diagonal.

    The signs are multiplied, the logarithms added up.
    """
    yield from outs(launch)
    tensor = launch["A"]
    count, item = matrices(tensor), tensor.element_size()
    diagonal = count * tensor.size(-1) * item
    yield temporary("info", count * INT)
    yield from factor_steps(tensor)
    yield from _swaps(tensor)
    yield temporary("signs", diagonal)
    yield temporary("product", count * item)
    yield from (drop("product"), drop("signs"), drop("swaps"))
    yield temporary("logarithms", diagonal)
    yield from (drop("logarithms"), drop("info"))


def _swaps(tensor: torch.Tensor) -> Iterator[Step]:
    """Yield the number of rows that the pivots have moved (lu_det_P)."""
    count, rows = matrices(tensor), tensor.size(-1)
    yield temporary("range", rows * INT)
    yield temporary("moved", count * rows)
    yield temporary("swaps", count * LONG)
    yield temporary("converted", count * rows * LONG)
    yield from (drop("converted"), drop("moved"), drop("range"))


def geqrf(launch: Launch) -> Iterator[Step]:
    """Yield the reflectors, and a number for each."""
    yield from outs(launch)
    yield from reflector_steps(launch["self"])


def qr(launch: Launch) -> Iterator[Step]:
    """Yield the results and the factors of the reflectors (tau).

    The reflectors of a tall matrix without its Q are a temporary.
    """
    yield from outs(launch)
    tensor = launch["A"]
    yield temporary("tau", matrices(tensor) * min(tensor.size()[-2:]) * tensor.element_size())
    if launch["mode"] == "r" and tensor.size(-2) > tensor.size(-1):
        yield temporary("reflectors", nbytes(tensor))
    yield from reflector_steps(tensor)
    if launch["mode"] == "r":
        yield drop("reflectors")
    else:
        yield temporary("info of orgqr", INT)
        yield drop("info of orgqr")


def ldl_solve(launch: Launch) -> Iterator[Step]:
    """Yield the result, the pivots in 64 bits and an error code."""
    yield from outs(launch)
    if launch["LD"].numel():
        yield temporary("pivots", launch["pivots"].numel() * LONG)
        yield temporary("info", INT)
        yield from (drop("info"), drop("pivots"))


def reflectors(launch: Launch) -> Iterator[Step]:
    """Yield the results and one error code for all matrices.

    ormqr reads the reflectors by columns, from a copy if they lie otherwise.
    """
    yield from outs(launch)
    if launch.call.func is aten.ormqr.default and not launch["self"].mT.is_contiguous():
        yield temporary("by columns", nbytes(launch["self"]))
    whole = launch.call.func is aten.linalg_householder_product.default
    if not whole or launch["input"].numel():
        yield temporary("info", INT)
