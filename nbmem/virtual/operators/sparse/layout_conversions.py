"""Conversions between CSR, CSC and dense matrices, and from COO.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/TensorConversions.cpp
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual import current_machine
from nbmem.virtual.operator_model.operator import LONG, Executor
from nbmem.virtual.operators.sorting import cub
from nbmem.virtual.operators.sparse.parts import coalesced, scratch
from nbmem.virtual.tensors.sparse import Compressed, compressed, is_sparse, parts_of

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

CSR, CSC = torch.sparse_csr, torch.sparse_csc
OTHER = {
    CSR: CSC,
    CSC: CSR,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}
_SORTED_AT_ONCE = 4096
"""Elements up to which a sort takes no additional memory."""


@contextmanager
def scratch_buffers(like: torch.Tensor, *sizes: int) -> Iterator[None]:
    """Allocate scratch buffers in order; free them in reverse order."""
    held = [scratch(like, nbytes) for nbytes in sizes]
    yield
    while held:
        held.pop()


def flip_layout(tensor: torch.Tensor) -> torch.Tensor:
    """Convert CSR to CSC or back (compressed_to_flipped).

    Indices are made as in COO and sorted in the other order.
    """
    parts: Compressed = parts_of(tensor)
    values, count = parts.values, parts.nnz
    across, along = parts.compressed.numel() - 1, tensor.size(1 if parts.rows else 0)
    index = parts.plain.element_size()
    whole = count * index
    batches = scratch(values, LONG)
    with scratch_buffers(values, LONG), scratch_buffers(values, cub.tile_states(1, 16)):
        pass
    with scratch_buffers(values, across * index):
        begins = scratch(values, (across + 1) * index)
    places = scratch(values, 2 * whole)
    with scratch_buffers(values, whole, whole):
        pass
    sorts = [scratch(values, whole) for _ in range(4)]
    if count > _SORTED_AT_ONCE:
        sorts.append(scratch(values, _sort(tensor, count)))
        sorts.pop()
    del sorts[2:]
    both = torch.empty((2, count), dtype=parts.plain.dtype, device=tensor.device)
    moved = torch.empty_like(values)
    outer = torch.empty(along + 1, dtype=parts.plain.dtype, device=tensor.device)
    with scratch_buffers(values, (along + 1) * index, along * index):
        pass
    del sorts, places, begins, batches
    return compressed(tensor.size(), OTHER[parts.layout], outer, both[0], moved)


def _sort(tensor: torch.Tensor, count: int) -> int:
    machine = current_machine.machine()
    assert machine is not None
    return cub.radix_sort(machine.gpu(tensor.device).card, count, LONG, LONG)


def coo_to_compressed(executor: Executor, call: OperatorCall) -> Any:
    """Run `to_sparse_csr()` and `to_sparse_csc()` of COO.

    Row starts are new. The rest is the coalesced tensor's.
    """
    tensor = call.args[0]
    wanted = CSR if call.func._schema.name.endswith("csr") else CSC
    if tensor.dim() != 2:
        return NotImplemented
    turned = tensor if wanted is CSR else tensor.transpose(0, 1)
    parts = coalesced(turned, executor, call)
    outer = torch.empty(turned.size(0) + 1, dtype=torch.int64, device=tensor.device)
    return compressed(tensor.size(), wanted, outer, parts.indices[1], parts.values)


def dense_to_compressed(executor: Executor, call: OperatorCall) -> Any:
    """Run `to_sparse_csr()` of a dense matrix.

    Elements that are not zero are retained; unknown values count as nonzero.
    """
    dense = call.args[0]
    if is_sparse(dense) or dense.dim() != 2:
        return NotImplemented
    wanted = CSR if call.func._schema.name.endswith("csr") else CSC
    with executor:
        return select_by_mask(dense, (dense if wanted is CSR else dense.t()).ne(0), wanted)


def select_by_mask(dense: torch.Tensor, mask: torch.Tensor, wanted: torch.layout) -> torch.Tensor:
    """Select elements of a dense matrix (dense_to_sparse_with_mask).

    The mask has a row for each line of the wanted layout.
    """
    places = mask.nonzero().t()
    inner = places[1].contiguous()
    outer = torch.empty(mask.size(0) + 1, dtype=torch.int64, device=dense.device)
    among_all = mask.flatten().nonzero().flatten()
    by_lines = dense if wanted is CSR else dense.t()
    values = by_lines.flatten().index_select(0, among_all)
    del among_all, by_lines
    return compressed(dense.size(), wanted, outer, inner, values)


def to_dense(executor: Executor, call: OperatorCall) -> torch.Tensor:
    """Run `to_dense`: zeros, and the elements scattered into them."""
    tensor = call.args[0]
    parts: Compressed = parts_of(tensor)
    dense = torch.zeros(tensor.size(), dtype=tensor.dtype, device=tensor.device)
    executor.values.forget(dense)
    across, index = parts.compressed.numel() - 1, parts.plain.element_size()
    whole = parts.nnz * index
    batch = scratch(dense, LONG)
    numbers = scratch(dense, whole)
    del batch
    rows = across * index
    with scratch_buffers(dense, LONG, rows, rows):
        sizes = scratch(dense, rows)
        with scratch_buffers(dense, LONG):
            begins = [scratch(dense, LONG), scratch(dense, rows + index)]
            del begins[0], sizes
    places = scratch(dense, 2 * whole)
    with scratch_buffers(dense, whole):
        pass
    with scratch_buffers(dense, *[whole] * 5):
        pass
    del places, begins, numbers
    return dense
