"""How many elements of a mask can be set, or how large an integer is, where the steps say so.

A sampler writes ones at 512 places of a mask of zeros: which places is unknown, how many is not. A
prediction is the largest of ten scores: which one is unknown, but it is one of ten.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.value_rules import Bound
    from nbmem.virtual.tensors.values import Values

_WIDTHS = {torch.bool: 2, torch.uint8: 256}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def learn(values: Values, name: str, made: list[torch.Tensor], bound: int) -> None:
    """Keep what a rule says of a call's results, or take it for what they are (ValueRule)."""
    result = made[-1 if name == "below" else 0]
    block = values.storages.of(result)
    if block is None:
        return
    if name in ("most", "below"):
        setattr(block, name, bound)
    elif block.twin is None and result.dtype in _INTEGERS and result.numel():
        share_out(values, bound if name == "shared" else (bound - 1) * result.numel(), result)


def share_out(values: Values, total: int, counts: torch.Tensor) -> None:
    """Teach counts that nobody knows: the same in each, so that their sum is what it must be."""
    share, rest = divmod(total, counts.numel())
    with _C._DisableTorchDispatch():
        shared = torch.full((counts.numel(),), share, dtype=counts.dtype, device="cpu")
        shared[:rest] += 1
        values.teach(counts, shared.view(counts.size()))


def agreed(values: Values, tensor: torch.Tensor, answer: Any) -> Any:
    """An answer that was given is a number's value from then on: what is computed from it agrees.

    `arange(longest)` and `zeros(8 * longest)` would fit to nothing otherwise.
    """
    if tensor.dtype in _INTEGERS:
        share_out(values, answer, tensor)
    return answer


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


def below_of(values: Values, tensor: torch.Tensor) -> int | None:
    """What no integer of a tensor reaches; None if nobody knows, or one may be negative."""
    if tensor.dtype in _WIDTHS:
        return _WIDTHS[tensor.dtype]
    if not is_virtual(tensor):
        return None
    twin = values.twin(tensor)
    if twin is None or not twin.numel():
        block = values.storages.of(tensor)
        return None if block is None else block.below
    with _C._DisableTorchDispatch():
        whole = twin.dtype.is_floating_point and bool(twin.isfinite().all())
        return below_in(twin.floor().long() if whole else twin)  # floats: once they are cut


def below_in(tensor: torch.Tensor) -> int | None:
    """What no integer of a CPU tensor reaches; None if one is negative, or there are none."""
    if tensor.dtype not in _INTEGERS or not tensor.numel():
        return None
    low, high = torch.aminmax(tensor)
    return int(high) + 1 if int(low) >= 0 else None


def fixed(bound: int) -> Bound:
    """A bound that every result has: zeros have no entries, and are below one."""
    return lambda _values, _call: bound


def marked(values: Values, call: OperatorCall) -> int | None:
    """`mask.scatter(dim, places, 1)`: as many more as there are places."""
    before = most_of(values, call.args[0])
    return None if before is None else before + call.argument("index").numel()


def marked_below(values: Values, call: OperatorCall) -> int | None:
    """What was there, and the number that marks."""
    before, mark = below_of(values, call.args[0]), call.argument("value")
    return None if before is None or mark < 0 else max(before, int(mark) + 1)


def entries(values: Values, call: OperatorCall) -> int | None:
    """What ones and zeros add up to."""
    tensor = call.args[0]
    if tensor.dtype.is_floating_point or below_of(values, tensor) != 2:
        return None
    return most_of(values, tensor)


def summed(values: Values, call: OperatorCall) -> int | None:
    """As many times the largest number as are added up."""
    tensor = call.args[0]
    bound = None if tensor.dtype.is_floating_point else below_of(values, tensor)
    if bound is None:
        return None
    dims = call.argument("dim", None) if tensor.dim() else None
    return (bound - 1) * math.prod(tensor.size(d) for d in dims or range(tensor.dim())) + 1


def place(values: Values, call: OperatorCall) -> int | None:
    """A place along a dimension, or among all elements."""
    del values
    tensor, dim = call.args[0], call.argument("dim")
    return tensor.numel() if dim is None else tensor.size(dim) if tensor.dim() else 1


def drawn(values: Values, call: OperatorCall) -> int | None:
    """Integers drawn by lot."""
    del values
    low, high = call.argument("low", 0), call.argument("high")
    return int(high) if low is not None and low >= 0 and high is not None else None


def as_before(values: Values, call: OperatorCall) -> int | None:
    """A copy, which may be of another type."""
    return below_of(values, call.args[0])


def together(values: Values, call: OperatorCall) -> int | None:
    """Of several tensors together."""
    found = [below_of(values, tensor) for tensor in call.args[0]]
    known = [bound for bound in found if bound is not None]
    return max(known) if known and len(known) == len(found) else None


def poured(name: str) -> Bound:
    """What was in a whole storage and what is written to places of it; to as many, that alone.

    Args:
        name: The argument that is written.
    """

    def bound(values: Values, call: OperatorCall) -> int | None:
        target, source = call.args[0], call.argument(name)
        if target.numel() * target.element_size() != target.untyped_storage().nbytes():
            return None
        if call.argument("accumulate", False):
            return None
        bounds = [below_of(values, source)]
        if source.numel() < target.numel():
            bounds.append(below_of(values, target))
        known = [bound for bound in bounds if bound is not None]
        return max(known) if len(known) == len(bounds) else None

    return bound
