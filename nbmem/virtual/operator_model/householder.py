"""The gradient of `householder_product`, computed column by column.

On a card the formula writes in place. A dispatch mode on the stack makes it gather the
columns and join them at the end, so all columns stay allocated. Here they are freed where
the in-place formula frees them, and the in-place formula's zeros replace the joined tensor.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/FunctionsManual.cpp:
householder_product_backward, which ormqr_backward uses
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.shape_only import shape_only_results
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from nbmem.virtual.operator_model.operator import Executor
    from nbmem.virtual.tensors.operator_call import OperatorCall

aten = torch.ops.aten

BOTH_SIDES = 2
"""Reflections that lead from one column to the next: from the left and from the right."""


class ReflectedColumns:
    """The progress of one gradient; it is kept as long as its node.

    Attributes:
        matrix: Of the reflections, as the program has it.
        zeros: The zeros of the matrix and of the factors, until they are used.
        made: How many zeros there are; both are made behind the first reflection.
        reflected: Reflections since the last column was gathered.
        last: The tensor that the formula has just made and may gather, if it is live.
        factor: The factor's gradient of this column.
        gathered: The storages of this column and its factor.
    """

    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix = weakref.ref(matrix)
        self.zeros: list[torch.Tensor] = []
        self.made = self.reflected = 0
        self.last: Callable[[], Any] = lambda: None
        self.factor: torch.UntypedStorage | None = None
        self.gathered: list[torch.UntypedStorage] = []

    def free_column(self, executor: Executor) -> None:
        """Free the memory of the column that was gathered."""
        for storage in self.gathered:
            executor.storages.resize(storage, 0)
        self.gathered = []


def gradient(executor: Executor, call: OperatorCall) -> Any:
    """Run a step of the gradient; NotImplemented if no step differs."""
    known = torch._C._current_autograd_node().metadata
    if call.func is aten.tril.default:
        known[__name__] = ReflectedColumns(call.args[0])
    columns = known.get(__name__)
    if columns is None:
        return NotImplemented
    if columns.reflected == BOTH_SIDES:
        columns.free_column(executor)
    step = _STEPS.get(call.func)
    return NotImplemented if step is None else step(executor, call, columns)


def _reflected(executor: Executor, call: OperatorCall, columns: ReflectedColumns) -> Any:
    columns.reflected += 1
    return NotImplemented


def _allocate_zeros(executor: Executor, call: OperatorCall, columns: ReflectedColumns) -> Any:
    """Allocate zeros at the first two slices behind the first reflection.

    They are for the matrix and the factors.
    """
    if columns.reflected and columns.made < 2:
        alike = call.args[0] if columns.made else columns.matrix()
        columns.made += 1
        with executor:
            columns.zeros.append(torch.zeros_like(alike))
    return NotImplemented


def _made(executor: Executor, call: OperatorCall, columns: ReflectedColumns) -> Any:
    made = executor.execute(call)
    columns.last = weakref.ref(made)
    return made


def _factor(executor: Executor, call: OperatorCall, columns: ReflectedColumns) -> Any:
    if columns.last() is call.args[0]:
        columns.factor = call.args[0].untyped_storage()
    return NotImplemented


def _column(executor: Executor, call: OperatorCall, columns: ReflectedColumns) -> Any:
    if columns.factor is not None:
        columns.gathered = [call.args[0].untyped_storage(), columns.factor]
        columns.factor, columns.reflected = None, 0
    return NotImplemented


def _unused(executor: Executor, call: OperatorCall, columns: ReflectedColumns) -> Any:
    """Return zeros without data for columns that belong to no factor."""
    columns.free_column(executor)
    return shape_only_results(call)


def _join_columns(executor: Executor, call: OperatorCall, columns: ReflectedColumns) -> Any:
    columns.free_column(executor)
    if not columns.zeros:
        return NotImplemented
    with DataKernels():
        return aten.alias.default(columns.zeros.pop(0))


_STEPS = {
    aten.sub_.Tensor: _reflected,
    aten.slice.Tensor: _allocate_zeros,
    aten.neg.default: _made,
    aten.squeeze.dim: _factor,
    aten.unsqueeze.default: _column,
    aten.zeros.default: _unused,
    aten.cat.default: _join_columns,
}
