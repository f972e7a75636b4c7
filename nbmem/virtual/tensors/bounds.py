"""How many elements of a mask can be set, where a program's own steps say so.

A sampler writes ones at 512 places of a mask of zeros: which places is unknown, how many is not.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.virtual.tensors.calls import Call
    from nbmem.virtual.tensors.values import Values

    _Follow = Callable[[Values, Call, list[torch.Tensor]], None]

aten = torch.ops.aten
_WRITES = frozenset({aten.index_put_.default, aten._index_put_impl_.default})
_UNITES = frozenset(
    {
        aten.bitwise_or.Tensor, aten.logical_or.default, aten.bitwise_or_.Tensor,
        aten.logical_or_.default, aten.add.Tensor, aten.cat.default,
    }
)  # fmt: skip
_NARROWS = frozenset({aten.bitwise_and.Tensor, aten.logical_and.default, aten.mul.Tensor})
_KEEPS = frozenset({aten._to_copy.default, aten.clone.default, aten.ne.Scalar, aten.gt.Scalar})
_COUNTED = _WRITES | _UNITES | _NARROWS | _KEEPS


def most_of(values: Values, tensor: torch.Tensor) -> int | None:
    """The most elements of a tensor that are not zero; None if nobody knows."""
    twin = values.twin(tensor)
    if twin is not None:
        with _C._DisableTorchDispatch():
            return int(torch.count_nonzero(twin))
    block = values.storages.of(tensor)
    whole = tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    return block.most if block is not None and whole else None


def most_after(values: Values, call: Call) -> int | None:
    """The same of what a call makes or writes to, from what is known before it is carried out."""
    if call.func not in _COUNTED:
        return None
    if call.func in _WRITES:
        return _after_writing(values, call)
    if call.func in _KEEPS:
        source, *limit = call.args
        return most_of(values, source) if is_virtual(source) and limit in ([], [0]) else None
    known = [most_of(values, tensor) for tensor in call.tensors if is_virtual(tensor)]
    if call.func in _NARROWS:
        return min((count for count in known if count is not None), default=None)
    counts = [count for count in known if count is not None]
    return sum(counts) if len(counts) == len(call.tensors) else None


def _after_writing(values: Values, call: Call) -> int | None:
    """`mask[places] = 1`: as many more as there are places, each with all that lies below it."""
    target, places = call.args[:2]
    before = most_of(values, target) if is_virtual(target) else None
    if before is None or any(at is None or at.dtype is torch.bool for at in places):
        return None
    below = target.size()[len(places) :].numel()
    return before + torch.broadcast_shapes(*[at.size() for at in places]).numel() * below


def counted(follow: _Follow) -> _Follow:
    """Let what is said of a call's values say also how many are set."""

    @functools.wraps(follow)
    def followed(values: Values, call: Call, fresh: list[torch.Tensor]) -> None:
        most = most_after(values, call)
        follow(values, call, fresh)
        if most is not None:
            block = values.storages.of(fresh[0] if fresh else call.args[0])
            if block is not None:
                block.most = most

    return followed
