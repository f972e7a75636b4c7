"""In-place sums and fills of autograd under a dispatch mode.

With a mode on the stack every tensor might be a subclass. The engine then never adds two
gradients in place. Formulas that fill zeros of their own do not write into them and take a
second result. On a card both write in place.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from nbmem.core.runtime.bytecode import OF_A_LOCAL
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operator_model.running_node import RunningNode, register_node_names
from nbmem.virtual.tensors.shapes import is_dense
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor, Handler
    from nbmem.virtual.tensors.operator_call import OperatorCall

SOLE_TENSOR = 4
"""References to a gradient that only the engine's buffer holds, as counted inside the mode: the
buffer's, two of the operator's argument during the call, and Python's."""
_SOLE = torch.empty(1, device="cpu")
SOLE_STORAGE = torch._C._storage_Use_Count(_SOLE.untyped_storage()._cdata)
"""References to the storage of such a gradient: the tensor's and, since torch 2.10 or 2.11 (2.9 has
none), Python's."""
SOLE_OBJECT = OF_A_LOCAL + 1 + SOLE_STORAGE
"""References to its Python object, as counted in `add`; one of them as the storage has it."""
_ENGINE = "_engine_run_backward"

aten = torch.ops.aten


class BackwardPasses(threading.local):
    """A thread's running backward passes: for each, if it creates a graph."""

    def __init__(self) -> None:
        self.stack: list[bool] = []


runs = BackwardPasses()


def in_backward() -> bool:
    """Return whether the engine or a node calls an operator from C++.

    False for Python code in a node.
    """
    if not runs.stack:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_code.co_name == _ENGINE


_ADDING_NODES = register_node_names(
    (
        *("Atan2", "Cholesky", "LinalgCholesky", "LinalgEigh", "LinalgInv", "LinalgLstsq"),
        *("LinalgLu", "LinalgPinv", "LinalgPolar", "LinalgQr", "LinalgSolveEx", "LinalgSvd"),
        *(
            "Logcumsumexp",
            "Lu",
            "NativeGroupNorm",
            "SpecialI1",
            "StdMean",
            "TriangularSolve",
            "VarMean",
        ),
    )
)
"""Names of nodes whose formulas add tensors that have no other references.

Their sums take new tensors. A sum of the engine itself right after such a node is taken for one of
them."""
_SINGLE_KERNELS = (aten.native_group_norm_backward.default,)
"""Kernels that are such a formula's only operator, unless a graph of the gradient is created."""
_OUT_OF_PLACE_NODES = register_node_names(
    ("ScatterReduceBackward0", "IndexReduceBackward0", "PutBackward0")
)
"""Nodes whose formulas take a second tensor on a card, too. Their operators fill zeros in place
only in other formulas."""


def add(executor: Executor, call: OperatorCall) -> Any:
    """Add two gradients, in place where the engine would do so.

    https://github.com/pytorch/pytorch/blob/v2.11.0/torch/csrc/autograd/input_buffer.cpp
    (can_accumulate_inplace)
    """
    if not in_backward() or runs.stack[-1] or len(call.args) != 2 or call.kwargs:
        return NotImplemented
    held, new = call.args
    if not (is_virtual(held) and is_virtual(new)) or held.dtype is not new.dtype:
        return NotImplemented
    if held.size() != new.size() or _is_formula_sum(executor.nodes):
        return NotImplemented
    if sys.getrefcount(held) > SOLE_OBJECT or held._use_count() > SOLE_TENSOR or not is_dense(held):
        return NotImplemented
    if torch._C._storage_Use_Count(held.untyped_storage()._cdata) > SOLE_STORAGE:
        return NotImplemented
    with DataKernels():
        return aten.alias.default(held)


def _is_formula_sum(nodes: RunningNode) -> bool:
    """Return whether a formula adds, not the engine.

    False right after a kernel that is its formula's only operator.
    """
    return nodes.name().startswith(_ADDING_NODES) and nodes.before not in _SINGLE_KERNELS


def fill_in_place(in_place: Any) -> Handler:
    """Create a handler that fills the zeros of a C++ formula in place.

    Each such formula calls isTensorSubclassLike: value_selecting_reduction_backward,
    cummaxmin_backward and index_backward (https://github.com/pytorch/pytorch/blob/v2.11.0/torch/
    csrc/autograd/FunctionsManual.cpp), take_backward, gather_backward, index_select_backward,
    trace_backward and masked_select_backward (aten/src/ATen/native).

    Args:
        in_place: The operator that the formula calls on a card.
    """

    def fill(executor: Executor, call: OperatorCall) -> Any:
        if not in_backward() or executor.nodes.name() in _OUT_OF_PLACE_NODES:
            return NotImplemented  # The program calls it, or a formula that takes a second tensor.
        return _run_in_place(executor, call, in_place)

    return fill


def _run_in_place(executor: Executor, call: OperatorCall, in_place: Any) -> torch.Tensor:
    """Run another operator with a call's arguments; return the first, aliased."""
    with executor:
        in_place(*call.args, **call.kwargs)
    with DataKernels():
        return aten.alias.default(call.args[0])


def fill_by_index(executor: Executor, call: OperatorCall) -> Any:
    """Write into the zeros of index_backward: an `unsafe` index_put."""
    if len(call.args) < 4:
        return NotImplemented
    return _fill_unchecked(executor, call)


def overwrite_in_place(
    in_place: Any, nodes: tuple[str, ...], named: tuple[str, ...] = ()
) -> Handler:
    """Create a handler that overwrites what a C++ formula has just made.

    Args:
        in_place: The operator that the formula calls on a card.
        nodes: The autograd nodes whose formulas call isTensorSubclassLike for that:
            binary_cross_entropy_with_logits_backward (aten/src/ATen/native/Loss.cpp),
            evenly_distribute_backward, clamp_backward and atan2_backward (FunctionsManual.cpp).
        named: Nodes whose formulas hold in a variable what they have just chosen (`where`).
    """
    every = register_node_names((*nodes, *named))

    def overwrite(executor: Executor, call: OperatorCall) -> Any:
        if not in_backward():
            return NotImplemented
        held, other = call.args[:2]
        node = executor.nodes.name()
        if (
            node not in (nodes if executor.nodes.before is not aten.where.self else every)
            or held._use_count() > SOLE_TENSOR + (node in named)
            or torch.broadcast_shapes(held.size(), other.size()) != held.size()
        ):
            return NotImplemented
        return _run_in_place(executor, call, in_place)

    return overwrite


def _unchecked(*args: Any, **kwargs: Any) -> None:
    aten._index_put_impl_.default(*args, True, **kwargs)


_fill_unchecked = fill_in_place(_unchecked)
