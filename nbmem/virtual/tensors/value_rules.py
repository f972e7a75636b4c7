"""What an operator does to values and to their health, for the records of operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import _C

from nbmem.virtual.devices import CPU, is_virtual

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.stand_ins.value_signs import LookRule
    from nbmem.virtual.tensors.values import Values

    Bound = Callable[[Values, OperatorCall], int | None]
    Health = Callable[[OperatorCall, bool | None], bool | None]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRule:
    """What an operator does to values, where running it on the known ones does not say all.

    Attributes:
        health: What a bool or a count made by it is in a healthy run, by the call and what its
            arguments are there (None: unknown or not alike); None: unknown.
        absorbs: The value that makes the result that value, whatever the other argument holds.
        overwrites: It writes all of its first argument, whatever that held.
        undefined: Its result holds nothing yet.
        by_geometry: It reads no more of its arguments than their shape.
        harmless: In a healthy run it changes nothing that is not known.
        most: The most elements of its result that are not zero, where a program's steps say so.
        below: What no integer of its last result reaches, where its steps say so.
        largest: What no integer that it looks through reaches: its first result is taken to be the
            number before that, where the integers are not known one by one.
        look: What floats of its results look like where they are unknown (value_signs.py);
            None: positive.
        shared: What its results add up to: each is taken to have the same part of it, where they
            are not known one by one.
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
    look: LookRule | None = None
    shared: Bound | None = None

    @property
    def bounds(self) -> tuple[tuple[str, Bound], ...]:
        """What is bounded, and how; mostly nothing is."""
        every = (
            *(("most", self.most), ("below", self.below)),
            *(("largest", self.largest), ("shared", self.shared)),
        )
        return tuple((name, rule) for name, rule in every if rule is not None)

    def makes(self, call: OperatorCall) -> bool:
        """Whether the call makes values of nothing on the card, or of no more than a shape."""
        return self.by_geometry or not any(is_virtual(t) for t in call.tensors)


def always(answer: bool) -> Health:  # noqa: FBT001 - it is the answer
    """The health of a question with one answer in a healthy run."""
    return lambda _call, _flag: answer


def passed_on(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """The arguments' health."""
    del call
    return flag


def occurring(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """The arguments' health; of measured numbers some are not zero, as weights are."""
    return True if flag is None and call.args[0].dtype.is_floating_point else flag


def flipped(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """The opposite."""
    del call
    return None if flag is None else not flag


def counted_up(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """Of none there are 0; a flag does not say how many."""
    del call
    return None if flag is None or flag else False


def compared(call: OperatorCall, flag: bool | None) -> bool | None:  # noqa: FBT001 - a rule's shape
    """A flag or a count against a number; nothing is infinite, and all equals itself."""
    left, right = call.args[:2]
    alike = {aten.eq: True, aten.ne: False}.get(call.func.overloadpacket)
    if isinstance(right, torch.Tensor):
        return alike if left is right else None
    if alike is not None and right in (math.inf, -math.inf):
        return not alike
    if flag is None:
        return None
    with _C._DisableTorchDispatch():
        return bool(call.func(torch.full((), int(flag), device=CPU), right))
