"""Sparse tensors: empty themselves, with dense parts on the card.

In C++ such a tensor is one without data, like a dense one (storages.py), whose dispatch keys are
those of a sparse one. Its parts belong to its storage. So shallow copies of C++ (saved for the
backward pass, `.data`) have them, too, and they are freed with the last of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import _C

from nbmem.virtual.devices import CUDA, LAZY
from nbmem.virtual.tensors.quantized import QuantizedTensor
from nbmem.virtual.tensors.storages import DataKernels, dataless_sparse, original_wrapper

COO = torch.sparse_coo
ROWS = (torch.sparse_csr, torch.sparse_bsr)
"""Layouts whose rows are compressed."""
LAYOUTS = (COO, *ROWS, torch.sparse_csc, torch.sparse_bsc)
_HOME = "nbmem_parts"


class Coo(NamedTuple):  # its parts are freed as on a card: the last first
    """The parts of a tensor in COO layout.

    Attributes:
        indices: Shape (sparse dimensions, elements), int64.
        values: Shape (elements, *dense dimensions).
        coalesced: Whether no index occurs twice and the indices are in order, as torch defines it.
        distinct: How many different indices there are, where that is known although the tensor is
            not coalesced; None: it is not.
    """

    indices: torch.Tensor
    values: torch.Tensor
    coalesced: bool
    distinct: int | None = None

    @property
    def nnz(self) -> int:
        """Number of specified elements."""
        return self.values.size(0)

    @property
    def sparse_dim(self) -> int:
        """Number of dimensions that the indices address."""
        return self.indices.size(0)

    @property
    def dense_dim(self) -> int:
        """Number of dimensions of each element."""
        return self.values.dim() - 1


class Compressed(NamedTuple):
    """The parts of a tensor in CSR, CSC, BSR or BSC layout.

    Attributes:
        layout: Which of them.
        compressed: Where each row (CSC, BSC: column) begins, and the end.
        plain: The column (row) of each element or block.
        values: Shape (elements, *block, *dense dimensions).
    """

    layout: torch.layout
    compressed: torch.Tensor
    plain: torch.Tensor
    values: torch.Tensor

    @property
    def nnz(self) -> int:
        """Number of specified elements or blocks."""
        return self.plain.size(-1)

    @property
    def rows(self) -> bool:
        """True if the rows are compressed."""
        return self.layout in ROWS


class CompressedTensor(torch.Tensor):
    """A tensor in a compressed layout, dispatched to Python.

    By its dispatch keys C++ supports only COO.
    """

    __torch_function__ = _C._disabled_torch_function_impl

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as torch pickles its own sparse tensors."""
        del protocol
        parts: Compressed = parts_of(self)
        saved = (parts.compressed, parts.plain, parts.values, self.size())
        return torch._utils._rebuild_sparse_tensor, (parts.layout, saved)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the layout; refuse all else after the card is deactivated."""
        del types, kwargs
        if func is torch.ops.prim.layout.default:
            return parts_of(args[0]).layout
        raise RuntimeError(f"{func}: this sparse tensor was made on a virtual card that is gone.")


_PLAIN = (
    torch.Tensor.__torch_dispatch__,
    CompressedTensor.__torch_dispatch__,
    QuantizedTensor.__torch_dispatch__,
)


def is_foreign(func: Any, types: Any) -> bool:
    """Return whether a call belongs to another tensor subclass.

    A query of the layout, which C++ makes, counts as one.
    """
    asks = func is torch.ops.prim.layout.default
    return asks or any(kind.__torch_dispatch__ not in _PLAIN for kind in types)


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has one of the sparse layouts."""
    return tensor.layout is not torch.strided and tensor.layout in LAYOUTS


def coo(
    size: Sequence[int],
    indices: torch.Tensor,
    values: torch.Tensor,
    *,
    coalesced: bool,
    distinct: int | None = None,
) -> torch.Tensor:
    """Make a COO tensor that shares the memory of parts on a card."""
    known = values.size(0) if coalesced else distinct
    parts = Coo(alias(indices), alias(values), coalesced or values.size(0) < 2, known)
    return _made(dataless_sparse(tuple(size), values.dtype, parts.values), parts)


def compressed(
    size: Sequence[int],
    layout: torch.layout,
    outer: torch.Tensor,
    inner: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Make a compressed tensor that shares the memory of parts on a card."""
    parts = Compressed(layout, alias(outer), alias(inner), alias(values))
    ordinal = LAZY.index(_C.TensorBase.device.__get__(values))
    wrapper = original_wrapper(
        CompressedTensor, tuple(size), (0,) * len(size), 0, dtype=values.dtype,
        device=LAZY[ordinal], layout=layout, storage_size=0, dispatch_layout=True,
    )  # fmt: skip
    with DataKernels():
        made = torch.Tensor._make_subclass(
            CompressedTensor, wrapper, False, dispatch_layout=True, device_for_backend_keys=CUDA[0]
        )
    return _made(made, parts)


def _made(tensor: torch.Tensor, parts: Any) -> torch.Tensor:
    setattr(tensor.untyped_storage(), _HOME, parts)
    return tensor


def parts_of(tensor: torch.Tensor) -> Any:
    """Return the Coo or Compressed of a sparse tensor on a card."""
    return getattr(tensor.untyped_storage(), _HOME)


def set_parts(tensor: torch.Tensor, parts: Coo | Compressed) -> torch.Tensor:
    """Replace a sparse tensor's parts, as an in-place operator does."""
    return _made(tensor, parts)


def alias(part: torch.Tensor) -> torch.Tensor:
    """Return an alias of a tensor's memory that autograd does not track."""
    with DataKernels():
        return torch.ops.aten.alias.default(part)
