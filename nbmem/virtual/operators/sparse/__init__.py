"""Sparse operators, run as kernels on their dense parts.

The parts are ordinary tensors of the card (tensors/sparse.py). A handler does with them
what a card's kernel does in its host code. So names, values and memory need no further
rules. Scratch memory without a tensor is allocated by its size. Handlers run with
the mode on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.operators.sparse import (
    compressed,
    conversions,
    elementwise,
    layout_conversions,
    parts,
    products,
    reductions,
    shapes,
)
from nbmem.virtual.tensors.sparse import COO, LAYOUTS, is_sparse
from nbmem.virtual.tensors.unsupported import no_sparse_rule

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall

_OF_COO = {
    name: handler
    for family in (parts, conversions, elementwise, products, shapes, reductions)
    for name, handler in family.handlers()
}
for _name in ("_to_sparse_csr", "_to_sparse_csc"):
    _OF_COO[_name] = layout_conversions.coo_to_compressed
_OF_COMPRESSED = dict(compressed.handlers())


def has_sparse(call: OperatorCall) -> bool:
    """Return True if a tensor of the call is sparse, or its result is."""
    if call.kwargs and (layout := call.kwargs.get("layout")) is not None and layout in LAYOUTS:
        return True
    return any(is_sparse(tensor) for tensor in call.tensors)


def run_sparse(executor: Executor, call: OperatorCall) -> Any:
    """Run a call with a sparse tensor.

    NotImplemented is returned if it only makes one (OPERATORS).

    Raises:
        NotImplementedError: In torch's words, where no card runs it.
        UsageError: A card runs it, the virtual one cannot.
    """
    name = call.func._schema.name.removeprefix("aten::")
    first = next((tensor for tensor in call.tensors if is_sparse(tensor)), None)
    if first is None and name in _MAKING:
        return NotImplemented
    layout = call.kwargs.get("layout", COO) if first is None else first.layout
    handler = (_OF_COO if layout is COO else _OF_COMPRESSED).get(name)
    if handler is not None:
        with executor:
            made = handler(executor, call)
        if made is not NotImplemented:
            return made
    if call.func._can_decompose():
        with executor:
            return call.func.decompose(*call.args, **call.kwargs)
    raise _refusal(call, layout)


def _refusal(call: OperatorCall, layout: torch.layout) -> Exception:
    kind = "Sparse" if layout is COO else "SparseCsr"
    if call.func.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, f"{kind}CPU")):
        return no_sparse_rule(call.func, layout)
    return NotImplementedError(
        f"Could not run '{call.func._schema.name}' with arguments from the '{kind}CUDA' backend."
    )


_MAKING = frozenset(
    {
        "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors",
        "sparse_coo_tensor",
        "_to_sparse", "_to_sparse_csr", "_to_sparse_csc",
    }
)  # fmt: skip
OPERATORS = (
    Operator(("_sparse_coo_tensor_with_dims", "sparse_coo_tensor.size"), run=parts.with_dims),
    Operator(("_sparse_coo_tensor_with_dims_and_tensors",), run=parts.with_tensors),
    Operator(("_to_sparse", "_to_sparse.sparse_dim"), run=conversions.to_sparse),
    Operator(("_to_sparse_csr", "_to_sparse_csc"), run=layout_conversions.dense_to_compressed),
)
