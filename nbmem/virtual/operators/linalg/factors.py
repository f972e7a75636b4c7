"""Factors of matrices: what is factored aside, pivots, and whether it went well.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/BatchLinearAlgebra.cpp,
LinearAlgebra.cpp
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbmem.virtual.operators.linalg.solving import INT, LONG, factored, matrices, nbytes, pointers
from nbmem.virtual.operators.operator import drop, out, outs, temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.virtual.operators.operator import Launch, Step

aten = torch.ops.aten


def _checked(count: int) -> Iterator[Step]:
    """What check_errors takes inside of another operator."""
    yield temporary("any", 1)
    if count == 1:
        yield temporary("converted", 1)
        yield drop("converted")
    yield drop("any")


def lu_factor(launch: Launch) -> Iterator[Step]:
    """Factors, pivots, and whether it went well."""
    yield from outs(launch)
    yield from factored(launch["A"])


def _permutation(launch: Launch, rows: int, count: int) -> Iterator[Step]:
    """Pivots become a permutation: a range, for several matrices repeated."""
    yield temporary("range", rows * LONG)
    if count > 1:
        yield temporary("ranges", count * rows * LONG)
    yield from (drop("range"), drop("ranges"))


def lu_unpack(launch: Launch) -> Iterator[Step]:
    """The permutation's matrix and the two triangles."""
    yield from outs(launch)
    packed = launch["LU_data"]
    if launch["unpack_pivots"]:
        yield from _permutation(launch, packed.size(-2), matrices(packed))


def lu(launch: Launch) -> Iterator[Step]:
    """Factored aside and unpacked."""
    yield from outs(launch)
    tensor = launch["A"]
    count, (rows, columns) = matrices(tensor), tensor.size()[-2:]
    if count:
        yield temporary("factors", nbytes(tensor))
        yield temporary("pivots", count * min(rows, columns) * INT)
        yield temporary("info", count * INT)
        yield from factored(tensor)
        yield drop("factors")
    if launch["pivot"]:
        yield from _permutation(launch, rows, count)
    yield from (drop("info"), drop("pivots"))


def cholesky(launch: Launch) -> Iterator[Step]:
    """The factor; torch.cholesky asks at once whether it went well."""
    yield from outs(launch)
    tensor = launch["self"]
    count = matrices(tensor)
    whole = launch.call.func is aten.cholesky.default
    if not tensor.numel():
        return
    if whole:
        yield temporary("info", count * INT)
    if count > 1:
        yield from pointers(tensor)
    if whole:
        yield from _checked(count)


def eigh(launch: Launch) -> Iterator[Step]:
    """The vectors before the values."""
    for number in reversed(range(len(launch.outs))):
        yield out(number)
    count = matrices(launch["A"])
    if launch["A"].numel():
        yield temporary("info", count * INT)
        yield from _checked(count)


def svd(launch: Launch) -> Iterator[Step]:
    """Both sides' vectors, the values, and a copy that is destroyed."""
    tensor = launch["A"]
    count = matrices(tensor)
    order = (0, 2, 1) if len(launch.outs) == 3 else range(len(launch.outs))
    yield from (out(number) for number in order)
    if not tensor.numel():
        return
    yield temporary("info", count * INT)
    yield temporary("copy", nbytes(tensor))
    yield drop("copy")
    yield from _checked(count)


def determinant(launch: Launch) -> Iterator[Step]:
    """The sign of the permutation, and the product of the diagonal in the result."""
    yield from outs(launch)
    tensor = launch["A"]
    yield temporary("info", matrices(tensor) * INT)
    yield from factored(tensor)
    yield temporary("sign", matrices(tensor) * tensor.element_size())
    yield from _swaps(tensor)
    yield from (drop("swaps"), drop("sign"), drop("info"))


def log_determinant(launch: Launch) -> Iterator[Step]:
    """The product of the signs and the sum of the logarithms along the diagonal."""
    yield from outs(launch)
    tensor = launch["A"]
    count, item = matrices(tensor), tensor.element_size()
    diagonal = count * tensor.size(-1) * item
    yield temporary("info", count * INT)
    yield from factored(tensor)
    yield from _swaps(tensor)
    yield temporary("signs", diagonal)
    yield temporary("product", count * item)
    yield from (drop("product"), drop("signs"), drop("swaps"))
    yield temporary("logarithms", diagonal)
    yield from (drop("logarithms"), drop("info"))


def _swaps(tensor: torch.Tensor) -> Iterator[Step]:
    """How many rows the pivots have moved (lu_det_P)."""
    count, rows = matrices(tensor), tensor.size(-1)
    yield temporary("range", rows * INT)
    yield temporary("moved", count * rows)
    yield temporary("swaps", count * LONG)
    yield temporary("converted", count * rows * LONG)
    yield from (drop("converted"), drop("moved"), drop("range"))


def qr(launch: Launch) -> Iterator[Step]:
    """The reflectors' factors, and whether both kernels went well."""
    yield from outs(launch)
    tensor = launch["A"]
    if matrices(tensor) > 1 and tensor.numel():
        yield temporary("tau", matrices(tensor) * min(tensor.size()[-2:]) * tensor.element_size())
        yield from pointers(tensor, tensor)
        yield temporary("info of orgqr", INT)
        yield drop("info of orgqr")
        return
    yield temporary("tau", matrices(tensor) * min(tensor.size()[-2:]) * tensor.element_size())
    for name in ("info of geqrf", "info of orgqr") if launch["mode"] != "r" else ("info of geqrf",):
        yield temporary(name, INT)
        yield drop(name)


def ldl_solve(launch: Launch) -> Iterator[Step]:
    """Pivots in 64 bits, and whether it went well."""
    yield from outs(launch)
    if launch["LD"].numel():
        yield temporary("pivots", launch["pivots"].numel() * LONG)
        yield temporary("info", INT)
        yield from (drop("info"), drop("pivots"))


def reflectors(launch: Launch) -> Iterator[Step]:
    """One number says whether it went well, for all matrices."""
    yield from outs(launch)
    whole = launch.call.func is aten.linalg_householder_product.default
    if not whole or launch["input"].numel():
        yield temporary("info", INT)
