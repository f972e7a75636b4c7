"""Linear algebra by cuSOLVER and cuBLAS.

Their own work areas count as 0: without a card their size is unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nbmem.virtual.devices import META
from nbmem.virtual.operator_model.operator import Operator, by_parts
from nbmem.virtual.operators.linalg import eigen, factors, pseudo, roots, solving
from nbmem.virtual.tensors.shapes import Results, one, several, spec_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def geqrf(call: OperatorCall) -> Results:
    """Return the factors in one matrix, and one number for each reflector."""
    tensor = call.args[0]
    *batch, rows, columns = tensor.size()
    return several((tensor.size(), tensor.dtype), ((*batch, min(rows, columns)), tensor.dtype))


def _check_driver(call: OperatorCall) -> None:
    if call.argument("driver") not in (None, "gels"):
        raise RuntimeError(
            "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA"
        )


def lstsq(call: OperatorCall) -> Results:
    """Return the results of `linalg_lstsq`: no rank, no singular values.

    There are residuals if there are more equations than unknowns. The solution of a tall matrix
    is the upper part of what was the right side.
    """
    left, right = call.args[:2]
    *batch, rows, columns = left.size()
    tail = tuple(right.size()[len(batch) + 1 :])
    # The right side's columns are contiguous, as in LAPACK.
    height = max(rows, columns)
    whole = torch.empty((*batch, *tail, height), dtype=left.dtype, device=META)
    solution = (whole.mT if tail else whole)[..., :columns, *(slice(None),) * len(tail)]
    real = left.dtype.to_real()
    others = several(
        ((), left.dtype),  # instead of the solution
        ((*batch, *tail) if rows > columns else (0,), real),
        ((0,), torch.int64),
        ((0,), real),
    )
    first = spec_of(tuple(solution.size()), left.dtype, 0, solution.stride())
    specs = (replace(first, nbytes=whole.untyped_storage().nbytes()), *others.fresh[1:])
    return Results(specs, specs)


def linear_combination(call: OperatorCall) -> Results:
    """Return one row of tensors for each row of coefficients.

    These are the rows that matrix_exp adds up.
    """
    tensor, coefficients = call.args
    return one((coefficients.size(0), *tensor.size()[1:]), tensor.dtype)


def check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Check the error codes of all matrices with one reduction.

    In a healthy run none has failed.
    """
    del api_name, is_matrix
    aten.any.default(info)


_BLAS = "aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp: "
_DET = "aten/src/ATen/native/LinearAlgebra.cpp: _linalg_det_out, _linalg_slogdet_out, lu_det_P"
_ATEN = "aten/src/ATen/native/BatchLinearAlgebra.cpp: "
OPERATORS = (
    Operator(("geqrf",), shape=geqrf, memory=factors.geqrf, source=_BLAS + "geqrf_kernel"),
    Operator(
        ("linalg_lstsq",),
        refuse=_check_driver,
        shape=lstsq,
        memory=solving.least_squares,
        source=_ATEN + "linalg_lstsq_gels",
    ),
    Operator(("_compute_linear_combination",), shape=linear_combination),
    Operator(
        ("_linalg_check_errors",),
        composite=check_errors,
        source="aten/src/ATen/native/LinearAlgebraUtils.h, BatchLinearAlgebra.cpp",
    ),
    Operator(
        ("linalg_solve_triangular", "triangular_solve"),
        memory=solving.triangular,
        source=_BLAS + "triangular_solve_kernel",
    ),
    Operator(("linalg_lu_factor_ex",), memory=factors.lu_factor, source=_BLAS + "lu_factor"),
    Operator(("lu_unpack",), memory=factors.lu_unpack, source=_ATEN + "lu_unpack_out"),
    Operator(("linalg_lu",), memory=factors.lu, source=_ATEN + "linalg_lu_out"),
    Operator(
        ("linalg_lu_solve", "lu_solve"), memory=solving.lu_solve, source=_BLAS + "lu_solve_kernel"
    ),
    Operator(("linalg_inv_ex",), memory=solving.inverse, source=_ATEN + "linalg_inv_ex_out"),
    Operator(("_linalg_solve_ex",), memory=solving.solve, source=_ATEN + "_linalg_solve_ex_out"),
    Operator(
        ("linalg_cholesky_ex", "cholesky"),
        memory=factors.cholesky,
        source=_BLAS + "cholesky_kernel",
    ),
    Operator(
        ("cholesky_solve",),
        memory=solving.cholesky_solve,
        source=_BLAS + "_cholesky_solve_helper_cuda",
    ),
    Operator(
        ("cholesky_inverse",),
        memory=solving.cholesky_inverse,
        source=_BLAS + "cholesky_inverse_kernel_impl",
    ),
    Operator(("_linalg_eigh",), memory=factors.eigh, source=_ATEN + "_linalg_eigh_out"),
    Operator(("_linalg_svd",), memory=factors.svd, source=_ATEN + "_linalg_svd_out"),
    Operator(
        ("linalg_eig",), run=eigen.eig, memory=eigen.eigen_memory, source=_ATEN + "linalg_eig_out"
    ),
    Operator(("_linalg_eigvals",), memory=eigen.eigen_memory, source=_ATEN + "linalg_eigvals_out"),
    Operator(("linalg_eigvals",), composite=eigen.eigvals),
    Operator(("linalg_matrix_sqrth",), run=by_parts(roots.square_root)),
    Operator(("linalg_polar",), run=by_parts(roots.polar)),
    Operator(("linalg_svdvals",), composite=pseudo.singular_values),
    Operator(("linalg_eigvalsh",), composite=pseudo.eigenvalues),
    Operator(("linalg_pinv.atol_rtol_tensor",), run=pseudo.pseudoinverse),
    Operator(
        ("linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.atol_rtol_float"),
        composite=pseudo.rank,
    ),
    Operator(("linalg_matrix_rank", "linalg_matrix_rank.tol_tensor"), composite=pseudo.rank_within),
    Operator(("_linalg_det",), memory=factors.determinant, source=_DET),
    Operator(("_linalg_slogdet",), memory=factors.log_determinant, source=_DET),
    Operator(("linalg_qr",), memory=factors.qr, source=_ATEN + "linalg_qr_out"),
    Operator(("linalg_ldl_solve",), memory=factors.ldl_solve, source=_BLAS + "ldl_solve_kernel"),
    Operator(
        ("linalg_householder_product", "ormqr"),
        memory=factors.reflectors,
        source=_BLAS + "orgqr_kernel_impl, ormqr_kernel",
    ),
)
