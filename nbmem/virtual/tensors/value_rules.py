"""Rules for what an operator does to known values and their health.

Health is what a condition or a count is in a run without NaN or overflow (`CardMemory.healthy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import _C

from nbmem.virtual.devices import CPU, is_virtual

if TYPE_CHECKING:
    from nbmem.virtual.tensors.assumptions import Assumption
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.stand_ins.value_signs import SignRule
    from nbmem.virtual.tensors.values import Values

    Bound = Callable[[Values, OperatorCall], int | None]
    Health = Callable[[OperatorCall, bool | None], bool | None]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRule:
    """A rule for an operator's values, beyond running it on known ones.

    Attributes:
        health: Returns what a bool or a count made by it is in a healthy run. Its arguments are the
            call and the arguments' health (None: unknown or mixed). None: unknown.
        absorbs: The value that makes the result that value, whatever the other argument holds.
        overwrites: Whether it writes all of its first argument, whatever that held.
        undefined: Whether its result holds nothing yet.
        by_geometry: Whether it reads no more of its arguments than their shape.
        harmless: Whether it changes no known value in a healthy run.
        most: Bounds the nonzero elements of its result.
        below: An exclusive bound of the integers of its last result.
        largest: An exclusive bound of the integers that it searches. If they are not known one by
            one, its first result is taken to be that bound minus one.
        sign_rule: Returns sign and seed of its results' floats if they are unknown
            (stand_ins/value_signs.py); None: positive.
        shared: The sum of its results. If they are not known one by one, each is taken to have an
            equal share of it.
        assumes: Returns what a condition made by it is taken to be if it is unknown
            (assumptions.py); None: false.
    """

    health: Health | None = None
    absorbs: bool | None = None
    overwrites: bool = False
    undefined: bool = False
    by_geometry: bool = False
    harmless: bool = False
    most: Bound | None = None
    below: Bound | None = None
    largest: Bound | None = None
    sign_rule: SignRule | None = None
    shared: Bound | None = None
    assumes: Assumption | None = None

    @property
    def bounds(self) -> tuple[tuple[str, Bound], ...]:
        """The rules that bound results, by name; most operators have none."""
        every = (
            *(("most", self.most), ("below", self.below)),
            *(("largest", self.largest), ("shared", self.shared)),
        )
        return tuple((name, rule) for name, rule in every if rule is not None)

    def ignores_values(self, call: OperatorCall) -> bool:
        """Return whether a call makes values from no more than a shape."""
        return self.by_geometry or not any(is_virtual(t) for t in call.tensors)


def always(answer: bool) -> Health:  # noqa: FBT001 - it is the result
    """Make a health rule that always gives one answer."""
    return lambda _call, _flag: answer


def same_health(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """Return the arguments' health."""
    return flag


def nonzero_health(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """Return the arguments' health; True for floats of unknown health.

    Some measured numbers are not zero, as weights are.
    """
    return True if flag is None and call.args[0].dtype.is_floating_point else flag


def inverted_health(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """Return the opposite of the arguments' health; None if it is unknown."""
    return None if flag is None else not flag


def counted_up(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """Return False if all flags are False, so that the count is 0; else None."""
    return None if flag is None or flag else False


def compared(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """Return the health of a flag or a count compared to a number.

    A tensor equals itself, and nothing is infinite.
    """
    left, right = call.args[:2]
    if_equal = {aten.eq: True, aten.ne: False}.get(call.func.overloadpacket)
    if isinstance(right, torch.Tensor):
        return if_equal if left is right else None
    if if_equal is not None and right in (math.inf, -math.inf):
        return not if_equal
    if flag is None:
        return None
    with _C._DisableTorchDispatch():
        return bool(call.func(torch.full((), int(flag), device=CPU), right))
