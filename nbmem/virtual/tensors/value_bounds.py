"""Upper bounds of nonzero counts and of integers, from operators' rules.

A sampler writes ones at 512 indices of a mask of zeros: the indices are unknown, their number is
known. A prediction is the largest of ten scores: its index is unknown, but it is one of ten.
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

_VALUE_COUNTS = {torch.bool: 2, torch.uint8: 256}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def learn(values: Values, name: str, made: list[torch.Tensor], bound: int) -> None:
    """Store a bound of a call's result, or make the result known from it.

    "most" and "below" are stored. The others set equal values: "shared" is their sum, "largest"
    an exclusive bound that each is just below (ValueRule).
    """
    # Indices are the last result (topk, max), counts the first.
    result = made[-1 if name == "below" else 0]
    block = values.storages.of(result)
    if block is None:
        return
    if name == "most":
        block.most = min(bound, result.numel())
    elif name == "below":
        block.below = bound
    elif block.cpu_values is None and result.dtype in _INTEGERS and result.numel():
        share_out(values, bound if name == "shared" else (bound - 1) * result.numel(), result)


def share_out(values: Values, total: int, counts: torch.Tensor) -> None:
    """Set unknown counts to equal integers whose sum is `total`.

    The rest of the division goes to the first counts.
    """
    share, rest = divmod(total, counts.numel())
    with _C._DisableTorchDispatch():
        shared = torch.full((counts.numel(),), share, dtype=counts.dtype, device="cpu")
        shared[:rest] += 1
        values.teach(counts, shared.view(counts.size()))


def agreed(values: Values, tensor: torch.Tensor, answer: Any) -> Any:
    """Make an answered integer the tensor's known value, and return it.

    What is computed from it then agrees with the returned number. Otherwise `arange(longest)` and
    `zeros(8 * longest)` would not fit together.
    """
    if tensor.dtype in _INTEGERS:
        share_out(values, answer, tensor)
    return answer


def most_of(values: Values, tensor: torch.Tensor) -> int | None:
    """Return the most elements that can be nonzero; None if it is unknown."""
    cpu_values = values.cpu_values(tensor)
    if cpu_values is not None:
        with _C._DisableTorchDispatch():
            return int(torch.count_nonzero(cpu_values))
    block = values.storages.of(tensor)
    whole = tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    return block.most if block is not None and whole else None


def source_count(values: Values, call: OperatorCall) -> int | None:
    """Bound a copy or a nonzero mask by the nonzero count of the source."""
    source, *limit = call.args
    return most_of(values, source) if is_virtual(source) and limit in ([], [0]) else None


def smallest_count(values: Values, call: OperatorCall) -> int | None:
    """Bound an intersection by the smallest nonzero count among arguments."""
    return min((count for count in _known(values, call) if count is not None), default=None)


def total_count(values: Values, call: OperatorCall) -> int | None:
    """Bound a union by the sum of the arguments' nonzero counts."""
    counts = [count for count in _known(values, call) if count is not None]
    return sum(counts) if len(counts) == len(call.tensors) else None


def _known(values: Values, call: OperatorCall) -> list[int | None]:
    return [most_of(values, tensor) for tensor in call.tensors if is_virtual(tensor)]


def count_after_write(values: Values, call: OperatorCall) -> int | None:
    """Bound `mask[places] = 1` by the old nonzero count and the places.

    Each index counts all elements of the dimensions that are not indexed.
    """
    target, places = call.args[:2]
    before = most_of(values, target) if is_virtual(target) else None
    if before is None or any(at is None or at.dtype is torch.bool for at in places):
        return None
    below = target.size()[len(places) :].numel()
    return before + torch.broadcast_shapes(*[at.size() for at in places]).numel() * below


def below_of(values: Values, tensor: torch.Tensor) -> int | None:
    """Return an exclusive bound of a tensor's integers; None if unknown.

    None also if one of them may be negative.
    """
    if tensor.dtype in _VALUE_COUNTS:
        return _VALUE_COUNTS[tensor.dtype]
    if not is_virtual(tensor):
        return None
    cpu_values = values.cpu_values(tensor)
    if cpu_values is None or not cpu_values.numel():
        block = values.storages.of(tensor)
        return None if block is None else block.below
    with _C._DisableTorchDispatch():
        whole = cpu_values.dtype.is_floating_point and bool(cpu_values.isfinite().all())
        return below_in(cpu_values.floor().long() if whole else cpu_values)  # floats: rounded down


def below_in(tensor: torch.Tensor) -> int | None:
    """Return the largest integer of a CPU tensor, plus one.

    None if one is negative, or there are none.
    """
    if tensor.dtype not in _INTEGERS or not tensor.numel():
        return None
    low, high = torch.aminmax(tensor)
    return int(high) + 1 if int(low) >= 0 else None


def fixed(bound: int) -> Bound:
    """Make a rule that bounds every result by one number.

    Zeros, for example, have no nonzero elements and are below one.
    """
    return lambda _values, _call: bound


def count_after_scatter(values: Values, call: OperatorCall) -> int | None:
    """Bound `mask.scatter(dim, places, 1)` by old count and places."""
    before = most_of(values, call.args[0])
    return None if before is None else before + call.argument("index").numel()


def bound_after_scatter(values: Values, call: OperatorCall) -> int | None:
    """Bound a scatter's integers by those before it and the written value."""
    before, mark = below_of(values, call.args[0]), call.argument("value")
    return None if before is None or mark < 0 else max(before, int(mark) + 1)


def entries(values: Values, call: OperatorCall) -> int | None:
    """Return the most that zeros and ones can add up to.

    A condition that is assumed to be true is a one for each element.
    """
    tensor = call.args[0]
    if tensor.dtype.is_floating_point or below_of(values, tensor) != 2:
        return None
    most = most_of(values, tensor)
    block = values.storages.of(tensor)
    return tensor.numel() if most is None and block is not None and block.assumed else most


def summed(values: Values, call: OperatorCall) -> int | None:
    """Bound a sum by the number of addends times the largest of them."""
    tensor = call.args[0]
    bound = None if tensor.dtype.is_floating_point else below_of(values, tensor)
    if bound is None:
        return None
    dims = call.argument("dim", None) if tensor.dim() else None
    return (bound - 1) * math.prod(tensor.size(d) for d in dims or range(tensor.dim())) + 1


def place(values: Values, call: OperatorCall) -> int | None:
    """Bound an index along a dimension, or among all elements."""
    del values
    tensor, dim = call.args[0], call.argument("dim")
    return tensor.numel() if dim is None else tensor.size(dim) if tensor.dim() else 1


def drawn(values: Values, call: OperatorCall) -> int | None:
    """Bound random integers by the argument `high`.

    None if `low` is negative or there is no `high`.
    """
    del values
    low, high = call.argument("low", 0), call.argument("high")
    return int(high) if low is not None and low >= 0 and high is not None else None


def as_before(values: Values, call: OperatorCall) -> int | None:
    """Bound a copy's integers by those of its source, of any type."""
    return below_of(values, call.args[0])


def of_complement(values: Values, call: OperatorCall) -> int | None:
    """Bound `1 - mask` of zeros and ones, which has zeros and ones, too."""
    return 2 if call.args[1] == 1 and below_of(values, call.args[0]) == 2 else None


def bound_of_joined(values: Values, call: OperatorCall) -> int | None:
    """Bound joined tensors by the largest bound among them."""
    found = [below_of(values, tensor) for tensor in call.args[0]]
    known = [bound for bound in found if bound is not None]
    return max(known) if known and len(known) == len(found) else None


def bound_after_write(name: str) -> Bound:
    """Make a rule for index writes into a tensor that fills its storage.

    The bound covers the old and the written integers. Old integers do not
    count if as many elements are written as the tensor has.
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
