"""Tensors with a shape and no memory: steps that a card does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.shapes import TensorSpec, infer
from nbmem.virtual.tensors.storages import dataless_result

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor


def is_shape_only(executor: Executor, tensor: Any) -> bool:
    """Return whether a tensor has no memory."""
    return isinstance(tensor, torch.Tensor) and executor.storages.of(tensor) is None


def shape_only_results(call: OperatorCall) -> Any:
    """Return the call's results without memory.

    An operator that writes in place returns its first argument.
    """
    if facts_of(call.func).mutates:
        return call.args[0]
    return _without_memory(infer(call).shape, call.gpu.index)


def _without_memory(shape: Any, ordinal: int) -> Any:
    if isinstance(shape, TensorSpec):
        return dataless_result(shape, ordinal)
    return tuple([_without_memory(one, ordinal) for one in shape])


def follow_shape_only(executor: Executor, call: OperatorCall, begins: tuple[Any, ...]) -> Any:
    """Return the results without memory if the call is such a step.

    A step begins the other path, or takes a tensor that has no memory. Returns NotImplemented
    for views and for other calls.
    """
    is_step = call.func in begins or any(is_shape_only(executor, t) for t in call.tensors)
    return shape_only_results(call) if is_step and not call.func.is_view else NotImplemented
