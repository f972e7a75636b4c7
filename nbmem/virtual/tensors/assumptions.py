"""Assumptions that answer conditions on unknown values.

A comparison and its complement are answered from one assumption, so that `(x == 0).any()` and
`(x != 0).all()` agree. No unknown value equals another. A number is compared as the smallest of its
stand-ins: it is not zero and above a tolerance. The left one of two unknown values is the larger.
So "may this go on?", as beam search asks, is answered with yes. A known tensor is smaller than an
unknown one: so a mask of positions below unknown lengths is of whole sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.tensors.stand_ins.numbers import LEAST, stand_in

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.values import Values

    Assumption = Callable[[Values, OperatorCall], bool | None]

aten = torch.ops.aten
_EQUAL, _LARGER, _SMALLER = aten.eq, aten.gt, aten.lt
_COMPLEMENTS = {aten.ne: _EQUAL, aten.le: _LARGER, aten.ge: _SMALLER}
EQUALITIES = frozenset((aten.eq, aten.ne))
"""Comparisons that hold for few numbers."""


def holds(values: Values, tensor: torch.Tensor) -> bool:
    """Return whether all elements of a condition are assumed to be true."""
    cpu_values = values.cpu_values(tensor) if is_virtual(tensor) else tensor
    if cpu_values is not None:
        with _C._DisableTorchDispatch():
            return bool(cpu_values.all())
    block = values.storages.of(tensor)
    return block is not None and bool(block.healthy or block.assumed)


def compared(values: Values, call: OperatorCall) -> bool:
    """Return the assumption on a comparison with a number or a tensor."""
    question = call.func.overloadpacket
    base = _COMPLEMENTS.get(question, question)
    return _is_assumed(values, call, base) is (question is base)


def _is_assumed(values: Values, call: OperatorCall, base: object) -> bool:
    left, right = call.args[:2]
    if base is _EQUAL:
        return False
    if isinstance(right, torch.Tensor):
        known, also = (_is_known(values, tensor) for tensor in (left, right))
        return base is (_SMALLER if known and not also else _LARGER)
    block = values.storages.of(left)
    signs = None if block is None else block.sign_and_seed
    if right <= 0 and signs is not None and signs.signed:
        return False
    number = LEAST if left.dtype.is_floating_point else 1
    return bool(number > right if base is _LARGER else number < right)


def _is_known(values: Values, tensor: torch.Tensor) -> bool:
    return not is_virtual(tensor) or values.cpu_values(tensor) is not None


def inverted(values: Values, call: OperatorCall) -> bool:
    """Return the opposite of the assumption on the argument."""
    return not holds(values, call.args[0])


def subtracted(values: Values, call: OperatorCall) -> bool | None:
    """Return the opposite of the assumption on a mask's numbers in `1 - mask`."""
    tensor, number = call.args[:2]
    block = values.storages.of(tensor) if is_virtual(tensor) else None
    if number != 1 or block is None or block.assumed is None or tensor.dtype.is_floating_point:
        return None
    return not block.assumed


def same(values: Values, call: OperatorCall) -> bool:
    """Return the assumption on the first argument; numbers are not zero."""
    tensor = call.args[0]
    if tensor.dtype is torch.bool:
        return holds(values, tensor)
    block = values.storages.of(tensor) if is_virtual(tensor) else None
    return block is not None and stand_in(torch.int64, block) != 0


def both(values: Values, call: OperatorCall) -> bool:
    """Return whether all arguments are assumed to be true."""
    return all(holds(values, tensor) for tensor in call.tensors)


def either(values: Values, call: OperatorCall) -> bool:
    """Return whether an argument is assumed to be true."""
    return any(holds(values, tensor) for tensor in call.tensors)
