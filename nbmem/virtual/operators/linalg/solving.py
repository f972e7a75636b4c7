"""Linear systems by cuBLAS and cuSOLVER: copies, permutations, pointers.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cuda/linalg/
BatchLinearAlgebra.cpp, BatchLinearAlgebraLib.cpp, BatchLinearAlgebraLibBlas.cpp
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nbmem.virtual.operator_model.operator import Launch, Step, drop, out, outs, temporary

aten = torch.ops.aten
INT, LONG, POINTER = 4, 8, 8
LARGE, FEW = 64, 8
"""Triangles from that size on, of so few matrices, are solved one by one."""
MOST_BATCHED = 128
"""Rows up to which matrices are factored together (the oracle: 128 are, 129 are not)."""


def matrices(tensor: torch.Tensor) -> int:
    """Return the number of matrices in a batch."""
    return tensor.size()[:-2].numel()


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def pointers(*sides: torch.Tensor) -> Iterator[Step]:
    """Yield an array of pointers for each side of a batched call."""
    for number, side in enumerate(sides):
        if side.numel():
            yield temporary(f"pointers {number}", matrices(side) * POINTER)
    for number in reversed(range(len(sides))):
        yield drop(f"pointers {number}")


def triangular_steps(triangle: torch.Tensor, right: torch.Tensor) -> Iterator[Step]:
    """Yield the temporaries of solving triangles (triangular_solve_kernel).

    All are solved at once, unless they are few and large.
    """
    if not (triangle.is_contiguous() or triangle.mT.is_contiguous()):
        yield temporary("triangle", nbytes(triangle))
    if matrices(triangle) > FEW or triangle.size(-1) < LARGE:
        yield from pointers(triangle, right)


def triangular(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `solve_triangular` and `triangular_solve`."""
    yield from outs(launch)
    names = ("A", "self") if launch.call.func is aten.triangular_solve.default else ("self", "B")
    if launch.outs:
        yield from triangular_steps(launch[names[0]], launch[names[1]])


def factor_steps(tensor: torch.Tensor) -> Iterator[Step]:
    """Yield the pointers for factoring matrices.

    cuBLAS factors square matrices together. cuSOLVER factors others one by one, without
    pointers.
    """
    rows, columns = tensor.size()[-2:]
    if matrices(tensor) > 1 and rows == columns and rows <= MOST_BATCHED:
        yield from pointers(tensor)


def lu_solve(launch: Launch) -> Iterator[Step]:
    """Yield the steps of solving by LU factors that the program has."""
    yield from outs(launch)
    old = launch.call.func is aten.lu_solve.default
    names = ("LU_data", "self") if old else ("LU", "B")
    if launch.outs and launch.outs[0].nbytes:
        adjoint = not old and (launch["adjoint"] or not launch["left"])
        yield from _lu_solve_steps(launch[names[0]], launch[names[1]], adjoint=bool(adjoint))


def _lu_solve_steps(factors: torch.Tensor, right: torch.Tensor, *, adjoint: bool) -> Iterator[Step]:
    """Yield the temporaries of solving by LU factors.

    All matrices are solved by cuBLAS, one after the other by cuSOLVER, or by their triangles.

    aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp: lu_solve_kernel
    """
    rows, columns = factors.size(-1), right.size(-1)
    few = matrices(factors) <= 2
    if rows == columns:
        together, looped = rows <= 16, False
    elif rows <= 8:
        together, looped = True, False
    elif rows <= 64:
        looped = few and (columns <= 64 or adjoint or rows <= 32)
        together = columns <= 8
    else:
        looped = few and rows <= 128 and columns <= 2
        together = rows <= 128 and columns <= 2
    if looped:
        yield temporary("info", INT)
        yield drop("info")
    elif together:
        yield from pointers(factors, right)
    else:
        yield from _by_triangles(factors, right)


def _by_triangles(factors: torch.Tensor, right: torch.Tensor) -> Iterator[Step]:
    """Yield the permutations, the gathered right side and two solves.

    Pivots become a permutation and its inverse, by which the right side is gathered.
    """
    count, rows = matrices(factors), factors.size(-1)
    yield temporary("range", rows * LONG)
    if count > 1:
        yield temporary("permutation", count * rows * LONG)
        yield drop("range")
    yield temporary("another range", rows * LONG)
    yield temporary("inverse", count * rows * LONG)
    yield temporary("gathered", nbytes(right))
    yield from _two_triangles(factors, right)
    for name in ("gathered", "inverse", "another range", "permutation", "range"):
        yield drop(name)


def _two_triangles(factors: torch.Tensor, right: torch.Tensor) -> Iterator[Step]:
    for _ in range(2):
        yield from triangular_steps(factors, right)


def inverse(launch: Launch) -> Iterator[Step]:
    """Yield the inverse, and the factors as a temporary.

    The factors are solved for the identity.
    """
    yield from outs(launch)
    tensor = launch["A"]
    if tensor.numel():
        yield temporary("factors", nbytes(tensor))
        yield temporary("pivots", matrices(tensor) * tensor.size(-1) * INT)
        yield from factor_steps(tensor)
        yield from _lu_solve_steps(tensor, tensor, adjoint=False)
        yield from (drop("pivots"), drop("factors"))


def solve(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `_linalg_solve_ex`.

    Factors and pivots are results. A vector's solution is a temporary first, because its
    strides differ.
    """
    yield from outs(launch)
    tensor, right = launch["A"], launch["B"]
    if not (tensor.numel() and right.numel()):
        return
    yield from factor_steps(tensor)
    is_vector = right.dim() == 1 or right.size() == tensor.size()[:-1]
    if is_vector:
        yield temporary("solution", launch.outs[0].nbytes)
        right = right.unsqueeze(-1)
    yield from _lu_solve_steps(tensor, right, adjoint=tensor.is_contiguous())


def least_squares(launch: Launch) -> Iterator[Step]:
    """Yield the steps of `linalg_lstsq` (linalg_lstsq_gels).

    The reflectors are those of the matrix or, if it is wide, of its transpose.
    """
    tensor, right = launch["self"], launch.outs[0]
    rows, columns = tensor.size()[-2:]
    yield temporary("info", matrices(tensor) * INT)
    yield out(0)
    if not tensor.numel():
        return
    yield temporary("matrix", nbytes(tensor))
    solved = torch.empty(right.size, dtype=right.dtype, device="meta")
    if matrices(tensor) > 1 and rows >= columns and rows <= MOST_BATCHED_ROWS:
        yield temporary("factors", nbytes(tensor))
        yield from pointers(tensor, solved)
        yield drop("factors")
    else:
        yield temporary("tau", matrices(tensor) * min(rows, columns) * tensor.element_size())
        if rows < columns:
            yield temporary("transpose", nbytes(tensor))
        yield from reflector_steps(tensor)
        steps = [temporary("info of ormqr", INT), drop("info of ormqr")]
        yield from steps if rows >= columns else ()
        yield from triangular_steps(
            tensor.new_empty((*tensor.size()[:-2], *[min(rows, columns)] * 2)), solved
        )
        yield from steps if rows < columns else ()
        yield from (drop("transpose"), drop("tau"))
    yield out(1)
    yield drop("matrix")
    yield from error_check(matrices(tensor))


MOST_BATCHED_ROWS, ROWS_A_MATRIX = 256, 16
"""Rows up to which cuBLAS makes reflectors of several matrices at once, and for how many."""


def reflector_steps(tensor: torch.Tensor) -> Iterator[Step]:
    """Yield the temporaries of computing reflectors (geqrf).

    They are pointers to all matrices for cuBLAS, or cuSOLVER's error code.
    """
    rows = tensor.size(-2)
    least = max(2, rows // ROWS_A_MATRIX)
    if rows <= MOST_BATCHED_ROWS and matrices(tensor) >= least:
        yield from pointers(tensor, tensor)
    else:
        yield temporary("info of geqrf", INT)
        yield drop("info of geqrf")


def error_check(count: int) -> Iterator[Step]:
    """Yield the temporaries of `check_errors` inside another operator."""
    yield temporary("any", 1)
    if count == 1:
        yield temporary("converted", 1)
        yield drop("converted")
    yield drop("any")


def cholesky_solve(launch: Launch) -> Iterator[Step]:
    """Yield the steps of solving by a Cholesky factor.

    One matrix is solved by cuSOLVER. Since torch 2.13 several are solved by their triangles,
    one after the other; before, by the library.
    """
    right, factor = launch["self"], launch["input2"]
    if launch.rules.cholesky_by_triangles:
        yield from outs(launch)
        yield from _by_factor(right, factor)
        return
    if matrices(factor) == 1:
        yield temporary("info", INT)
    yield from outs(launch)
    yield temporary("factor", nbytes(factor))
    yield from (drop("factor"), drop("info"))


def _by_factor(right: torch.Tensor, factor: torch.Tensor) -> Iterator[Step]:
    if matrices(factor) == 1:
        yield temporary("info", INT)
        yield temporary("factor", nbytes(factor))
        yield from (drop("factor"), drop("info"))
    else:
        yield from _two_triangles(factor, right)


def cholesky_inverse(launch: Launch) -> Iterator[Step]:
    """Yield a copy of the factor, which is solved for the identity."""
    yield from outs(launch)
    tensor = launch["self"]
    yield temporary("copy", nbytes(tensor))
    if launch.rules.cholesky_by_triangles:
        yield from _by_factor(tensor, tensor)
    elif matrices(tensor) == 1:
        yield temporary("info", INT)
        yield drop("info")
