"""The stream that accumulates a leaf's gradient: that of its graph node.

A leaf's node (AccumulateGrad) is made by the first operator that takes the leaf, and exists as long
as a graph holds it. On a card the engine enters the node's stream before it calls the leaf's hooks,
post-accumulate hooks among them; torch 2.9 to 2.14 do so. There is no query for existing nodes, but
a node's metadata (of anomaly detection) is freed with it. So the stream is recorded there, at every
call that takes a leaf. The first record stays.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/functions/accumulate_grad.cpp
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from nbmem.virtual.hardware.current_stream import CurrentStream

_needs_gradient: Any = _C.TensorBase.requires_grad.__get__
_AUTOGRAD = _C.DispatchKey.AutogradFunctionality
_layout_of: Any = _C.TensorBase.layout.__get__
_is_leaf: Any = _C.TensorBase.is_leaf.__get__


def node_of(leaf: torch.Tensor, stream: CurrentStream) -> Any:
    """Return a leaf's node, and assign the current stream to a new one.

    A node that nothing holds is freed at once.
    """
    node = _node_of(leaf)
    if node is not None and stream.changed:
        node.metadata.setdefault(stream.note, stream.handle)
    return node


def note_streams(call: OperatorCall) -> None:
    """Assign the current stream to the new nodes of a call's leaves.

    Leaves are only recorded before the program has used a second stream in this thread. Nothing
    is done where no node is made: in an optimizer's step and in backward.
    """
    without_grad = not torch.is_grad_enabled()
    if without_grad and facts_of(call.func).mutates:
        return  # an optimizer's step
    for tensor in call.tensors:
        if _needs_gradient(tensor) and _is_leaf(tensor):
            stream = call.gpu.stream
            if not stream.changed:
                stream.remember(tensor)
            elif _is_plain(tensor) and not (without_grad and _in_backward()):
                node_of(tensor, stream)


def note_first_stream(stream: CurrentStream, leaves: Iterable[torch.Tensor]) -> None:
    """Assign the default stream to leaves' nodes before the first change.

    A leaf without a node gets one for this moment alone.
    """
    for leaf in leaves:
        if _needs_gradient(leaf) and _is_leaf(leaf) and _is_plain(leaf):
            node = _node_of(leaf)
            if node is not None:
                node.metadata.setdefault(stream.note, 0)


def _in_backward() -> bool:
    """Return True if a backward runs in this thread.

    The node that runs gets a Python object by this. torch frees by recursion what Python has seen,
    so it is called only where streams have changed.
    """
    return _C._current_autograd_node() is not None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is strided and no wrapper of other tensors.

    A view of a wrapper would run the wrapper's code.
    """
    return (
        type(tensor).__torch_dispatch__ is _C._disabled_torch_dispatch_impl
        and _layout_of(tensor) is torch.strided
        and not _C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _node_of(leaf: torch.Tensor) -> Any:
    """Return a leaf's AccumulateGrad node through the graph of a view.

    None for what backward takes out of a graph, which is a leaf by its flags.
    """
    with DataKernels(), _C.DisableTorchFunction(), torch.enable_grad():
        _C._dispatch_tls_set_dispatch_key_excluded(_AUTOGRAD, False)  # in a call it is below
        view: Any = leaf.view_as(leaf)
        return view.grad_fn.next_functions[0][0]
