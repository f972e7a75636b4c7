"""Singular values alone, and the pseudoinverse and rank made of them.

CUDA does not compute vectors that are not wanted. To C++ a virtual tensor might be a
subclass, for which all are computed.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/LinearAlgebra.cpp,
BatchLinearAlgebra.cpp
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.value_checks import aten_type_name

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten


def needs_gradient(tensor: torch.Tensor) -> bool:
    """Return whether a gradient of the tensor is wanted."""
    return torch.is_grad_enabled() and tensor.requires_grad


def singular_values(tensor: torch.Tensor, *, driver: str | None = None) -> torch.Tensor:
    """Run `linalg_svdvals`, with vectors only if a gradient needs them."""
    found = aten._linalg_svd.default(tensor, False, needs_gradient(tensor), driver=driver)
    return found[1]


def eigenvalues(tensor: torch.Tensor, uplo: str = "L") -> torch.Tensor:
    """Run `linalg_eigvalsh`, with vectors only if a gradient needs them."""
    found = aten._linalg_eigh.default(tensor, uplo, needs_gradient(tensor))
    return found[0]


def _tolerances(tensor: torch.Tensor, atol: Any, rtol: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the absolute and the relative tolerance (get_atol_rtol).

    Numbers become float64; tensors are returned as they are.
    """

    def number(value: float) -> torch.Tensor:
        return torch.full((), value, dtype=torch.float64, device=tensor.device)

    share = torch.finfo(tensor.dtype).eps * max(tensor.size()[-2:])
    if not isinstance(atol, torch.Tensor) and not isinstance(rtol, torch.Tensor):
        relative = (0.0 if atol else share) if rtol is None else rtol
        return number(atol or 0.0), number(relative)
    least = number(0.0) if atol is None else atol
    if rtol is not None:
        return least, rtol
    relative, none = number(share), number(0.0)
    return least, torch.where(least > 0, none, relative)


def check_type(call: OperatorCall) -> None:
    """Refuse a type that `linalg_pinv` itself refuses."""
    tensor = call.args[0]
    if tensor.element_size() < 4 or not (tensor.is_floating_point() or tensor.is_complex()):
        raise RuntimeError(
            f"linalg.pinv({aten_type_name(tensor)}{{{list(tensor.size())}}}): expected a tensor "
            "with 2 or "
            "more dimensions of float, double, cfloat or cdouble types"
        )


def pseudoinverse(executor: Executor, call: OperatorCall) -> Any:
    """Run `linalg_pinv`: autograd sees one operator and none of its parts."""
    check_type(call)
    tensor = call.args[0]
    with executor:
        least, relative = _tolerances(tensor, call.argument("atol"), call.argument("rtol"))
        if not tensor.numel():
            left, values, right = tensor.svd()
            return (right * values.reciprocal().unsqueeze(-2)) @ left.mH
        if call.argument("hermitian"):
            values, left = torch.linalg.eigh(tensor)
            right, sizes = left, values.abs()
            largest = sizes.amax(-1, keepdim=True)
        else:
            left, values, right = tensor.svd()
            sizes, largest = values, values.narrow(-1, 0, 1)
        bound = torch.maximum(least.unsqueeze(-1), relative.unsqueeze(-1) * largest)
        zero = torch.zeros((), dtype=values.dtype, device=values.device)
        inverse = values.reciprocal()
        inverse = torch.where(sizes > bound, inverse, zero)
        del zero
        made = (right * inverse.unsqueeze(-2)) @ left.mH
        # In the order in which C++ frees its variables: the last first.
        del inverse, bound, largest, sizes
        if call.argument("hermitian"):
            del values, left, right
        else:
            del left, values, right
        del relative, least
        return made


def _rank(
    tensor: torch.Tensor, found: torch.Tensor, bounds: list[torch.Tensor], *, hermitian: bool
) -> torch.Tensor:
    if not tensor.numel():
        return found.fill_(0)
    if hermitian:
        values = eigenvalues(tensor).abs()
        largest = values.amax(-1, keepdim=True)
    else:
        values = singular_values(tensor)
        largest = values.narrow(-1, 0, 1)
    bound = torch.maximum(bounds[0].unsqueeze(-1), bounds[1].unsqueeze(-1) * largest)
    above = values > bound
    above.long()  # They are added up into what is there.
    del above, bound, largest, values
    while bounds:
        bounds.pop()
    return found


def _ranks(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.size()[:-2], dtype=torch.int64, device=tensor.device)


def rank(
    tensor: torch.Tensor,
    *,
    atol: torch.Tensor | float | None = None,
    rtol: torch.Tensor | float | None = None,
    hermitian: bool = False,
) -> torch.Tensor:
    """Run `linalg_matrix_rank`: count singular values above a bound."""
    found = _ranks(tensor)
    return _rank(tensor, found, [*_tolerances(tensor, atol, rtol)], hermitian=hermitian)


def rank_within(
    tensor: torch.Tensor,
    tol: torch.Tensor | float,
    hermitian: bool = False,  # noqa: FBT001, FBT002 - the schema's
) -> torch.Tensor:
    """Run `linalg_matrix_rank` with an absolute bound."""
    found = _ranks(tensor)
    if isinstance(tol, torch.Tensor):
        bounds = [tol, torch.zeros((), dtype=tol.dtype, device=tol.device)]
    else:
        bounds = [*_tolerances(tensor, tol, 0.0)]
    return _rank(tensor, found, bounds, hermitian=hermitian)
