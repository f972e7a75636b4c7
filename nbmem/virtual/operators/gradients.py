"""What autograd does differently because a dispatch mode is active, put right.

With a mode on the stack every tensor might be a subclass in disguise, so the engine never adds two
gradients in place, and formulas that fill zeros of their own leave them as they are and take a
second result. On a card both write in place.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from types import FrameType

    from nbmem.virtual.operators.dispatch import CardMode
    from nbmem.virtual.tensors.calls import Call

SOLE_TENSOR = 4
"""References to a gradient that only the engine's buffer holds, as counted inside the mode: the
buffer's, two of the operator's argument on its way here, and Python's."""
SOLE_STORAGE = 2
"""The same for its storage: the tensor's and Python's."""
SOLE_OBJECT = 5
"""The same for the Python object, counted in `add`."""
_ENGINE = "_engine_run_backward"

aten = torch.ops.aten
FILLS = {
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.index_put.default: aten._index_put_impl_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}
"""Operators with which a formula in C++ fills its zeros, and what it calls on a card instead.

Each asks isTensorSubclassLike: value_selecting_reduction_backward, cummaxmin_backward and
index_backward (https://github.com/pytorch/pytorch/blob/v2.11.0/torch/csrc/autograd/
FunctionsManual.cpp), gather_backward, index_select_backward, trace_backward and
masked_select_backward (aten/src/ATen/native).
"""
OVERWRITES = {
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.logical_and.default: aten.logical_and_.default,
}
"""Operators whose result takes the place of what a formula has just made, and how."""
_EVENLY = frozenset({aten.logical_and.default})
OVERWRITING = {
    "BinaryCrossEntropyWithLogitsBackward0": frozenset({aten.sub.Tensor, aten.mul.Tensor}),
    **dict.fromkeys(
        ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"), _EVENLY
    ),
}
"""By node: those of its formula that ask isTensorSubclassLike for that.

binary_cross_entropy_with_logits_backward (aten/src/ATen/native/Loss.cpp) and
evenly_distribute_backward.
"""


class _Runs:
    """Backward passes that are going on: whether each makes a graph."""

    stack: list[bool] = []  # noqa: RUF012 - one engine for the process


def in_backward() -> bool:
    """Whether the engine or a node calls an operator from C++, not Python code in a node."""
    if not _Runs.stack:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return caller is not None and caller.f_code.co_name == _ENGINE


def add(mode: CardMode, call: Call) -> Any:
    """A sum of two gradients: in place where the engine would do so.

    https://github.com/pytorch/pytorch/blob/v2.11.0/torch/csrc/autograd/input_buffer.cpp
    (can_accumulate_inplace)
    """
    del mode
    if not in_backward() or _Runs.stack[-1] or len(call.args) != 2 or call.kwargs:
        return NotImplemented
    held, new = call.args
    if not (is_virtual(held) and is_virtual(new)) or held.dtype is not new.dtype:
        return NotImplemented
    if (
        sys.getrefcount(held) > SOLE_OBJECT
        or held._use_count() > SOLE_TENSOR
        or not _is_dense(held)
    ):
        return NotImplemented
    if torch._C._storage_Use_Count(held.untyped_storage()._cdata) > SOLE_STORAGE:
        return NotImplemented
    with DataKernels():
        return aten.alias.default(held)


def fill(mode: CardMode, call: Call) -> Any:
    """The zeros of a formula, written in place; not what the program itself calls."""
    if not in_backward() or (call.func is aten.index_put.default and len(call.args) < 4):
        return NotImplemented
    zeros = call.args[0]
    unchecked = (True,) if call.func is aten.index_put.default else ()
    with mode:
        FILLS[call.func](*call.args, *unchecked, **call.kwargs)
    with DataKernels():
        return aten.alias.default(zeros)


def overwrite(mode: CardMode, call: Call) -> Any:
    """What a formula in C++ has just made, overwritten with the next step's result."""
    if not in_backward():
        return NotImplemented
    node = torch._C._current_autograd_node()
    held, other = call.args[:2]
    if (
        node is None
        or call.func not in OVERWRITING.get(node.name(), ())
        or held._use_count() > SOLE_TENSOR
        or torch.broadcast_shapes(held.size(), other.size()) != held.size()
    ):
        return NotImplemented
    with mode:
        OVERWRITES[call.func](*call.args, **call.kwargs)
    with DataKernels():
        return aten.alias.default(held)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, each once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def engine_patches() -> list[Patch]:
    """The call into the engine, so that it is known which node started which pass."""
    from torch import autograd
    from torch.autograd import graph

    true_run = graph._engine_run_backward

    def _engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
        _Runs.stack.append(create_graph)
        try:
            return true_run(outputs, *args, **kwargs)
        finally:
            _Runs.stack.pop()

    return [
        Patch(graph, "_engine_run_backward", _engine_run_backward),
        Patch(autograd, "_engine_run_backward", _engine_run_backward),
    ]
