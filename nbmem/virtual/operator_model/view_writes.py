"""Gradients of views that a program writes to.

After such a write autograd makes the view's node anew. On a device with strides that node
is AsStridedBackward. Its backward copies the gradient into memory as large as the base. C++
treats a virtual tensor as one without strides and calls the view's own function on the base
once more. The backward of that is a view of the gradient. That call is the next one after
the write. Its node is the second one after the write, after CopySlices. This distinguishes it
from views that the program takes.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/variable.cpp
(rebase_history, grad_fn); FunctionsManual.cpp: as_strided_backward

Known limit: nodes are found by sequence numbers, which each thread counts for itself. So a
backward in another thread than its forward finds none.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nbmem.virtual.operator_model.autograd_differences import (
    SOLE_STORAGE,
    SOLE_TENSOR,
    in_backward,
    runs,
)
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.shapes import is_dense

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor

    Geometry = tuple[torch.Size, tuple[int, ...]]

MOST_NODES = 4_096
"""The number of recorded view writes; older ones are dropped."""
_BEHIND = 2
aten = torch.ops.aten
_next_number: Any = getattr(torch._C._autograd, "_get_sequence_nr", None)
_RESHAPING = frozenset(
    {
        *(aten.view.default, aten._reshape_alias.default, aten.permute.default, aten.t.default),
        *(aten.transpose.int, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.unsqueeze.default, aten.flatten.using_ints),
    }
)
"""Views of all elements; the backward of others has memory as large as the base in any case."""

_BY_RESHAPE = frozenset({aten.view.default, aten._reshape_alias.default})
_SOLE_RESHAPED = SOLE_TENSOR + 1
"""References to a gradient that the engine alone holds, where C++ calls reshape in between."""

_SOLE_BASE = 3
"""References to a tensor that only one view holds as its base, as counted in `_is_engines`."""


class _Write(NamedTuple):
    """A write that was the last call.

    It has the base of the view, the view's number of elements, and the next node's number.
    """

    base: int
    elements: int
    number: int


class WrittenViews(threading.local):
    """Views of one thread that were written to, by their node's number.

    The node is the one that autograd made anew.
    """

    def __init__(self) -> None:
        self._last: _Write | None = None
        self._nodes: dict[int, Geometry] = {}

    def on_call_start(self, call: OperatorCall) -> None:
        """Check, as a call begins, if it makes the last written view anew."""
        written, self._last = self._last, None
        if written is None or call.func not in _RESHAPING:
            return
        base = call.args[0]
        number = _next_number()
        if id(base) != written.base or number != written.number + _BEHIND:
            return
        if base.numel() == written.elements:
            self._nodes[number - 1] = (base.size(), base.stride())
            if len(self._nodes) > MOST_NODES:
                del self._nodes[next(iter(self._nodes))]

    def on_call_end(self, call: OperatorCall) -> None:
        """Check, as a call ends, if it wrote to a view under autograd."""
        mutates = facts_of(call.func).mutates
        if not mutates or mutates[0] != 0 or _next_number is None:
            return
        target = call.args[0]
        if not isinstance(target, torch.Tensor) or not torch.is_grad_enabled():
            return
        base = target._base
        if base is not None:
            self._last = _Write(id(base), target.numel(), _next_number())

    def new_gradient(self, executor: Executor, call: OperatorCall) -> Any:
        """Return such a view's gradient in new memory, else NotImplemented."""
        if not self._nodes or not runs.stack or runs.stack[-1] or not call.func.is_view:
            return NotImplemented
        if not in_backward():
            return NotImplemented
        node = torch._C._current_autograd_node()
        geometry = None if node is None else self._nodes.get(node._sequence_nr())
        if geometry is None:
            return NotImplemented
        gradient = call.args[0]
        if self._is_engines(call) and is_dense(gradient):
            executor.storages.renew(gradient.untyped_storage())
            return NotImplemented  # The view retains the gradient, whose old memory is freed.
        size, stride = geometry
        with executor:
            return torch.empty_strided(size, stride, dtype=gradient.dtype, device=gradient.device)

    @staticmethod
    def _is_engines(call: OperatorCall) -> bool:
        """Return True if only the engine holds the gradient."""
        gradient = call.args[0]
        most = _SOLE_RESHAPED if call.func in _BY_RESHAPE else SOLE_TENSOR
        storage = gradient.untyped_storage()._cdata
        base = gradient._base
        is_bases = base is not None and base._use_count() <= _SOLE_BASE
        return (
            gradient._use_count() <= most
            and torch._C._storage_Use_Count(storage) <= SOLE_STORAGE + is_bases
        )
