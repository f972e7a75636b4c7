"""How many elements of a mask can be set, where a program's own steps say so.

A sampler writes ones at 512 places of a mask of zeros: which places is unknown, how many is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual

if TYPE_CHECKING:
    from nbmem.virtual.tensors.calls import OperatorCall
    from nbmem.virtual.tensors.values import Values


def most_of(values: Values, tensor: torch.Tensor) -> int | None:
    """The most elements of a tensor that are not zero; None if nobody knows."""
    twin = values.twin(tensor)
    if twin is not None:
        with _C._DisableTorchDispatch():
            return int(torch.count_nonzero(twin))
    block = values.storages.of(tensor)
    whole = tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    return block.most if block is not None and whole else None


def kept(values: Values, call: OperatorCall) -> int | None:
    """A copy, or which elements are not zero: as many as before."""
    source, *limit = call.args
    return most_of(values, source) if is_virtual(source) and limit in ([], [0]) else None


def narrowed(values: Values, call: OperatorCall) -> int | None:
    """What both have: no more than the smaller one."""
    return min((count for count in _known(values, call) if count is not None), default=None)


def united(values: Values, call: OperatorCall) -> int | None:
    """What one of them has: no more than all together."""
    counts = [count for count in _known(values, call) if count is not None]
    return sum(counts) if len(counts) == len(call.tensors) else None


def _known(values: Values, call: OperatorCall) -> list[int | None]:
    return [most_of(values, tensor) for tensor in call.tensors if is_virtual(tensor)]


def written(values: Values, call: OperatorCall) -> int | None:
    """`mask[places] = 1`: as many more as there are places, each with all that lies below it."""
    target, places = call.args[:2]
    before = most_of(values, target) if is_virtual(target) else None
    if before is None or any(at is None or at.dtype is torch.bool for at in places):
        return None
    below = target.size()[len(places) :].numel()
    return before + torch.broadcast_shapes(*[at.size() for at in places]).numel() * below
