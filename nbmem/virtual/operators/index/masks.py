"""Masks become indices before anything is read or written by them.

How many elements a mask selects is exact where its values are known, else a bound.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C

from nbmem.virtual.devices import LAZY, is_virtual
from nbmem.virtual.operator_model.autograd_differences import in_backward, runs
from nbmem.virtual.operator_model.operator import Executor, Launch, MemoryPlan
from nbmem.virtual.operators.index import index_kernels
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import Results, as_meta, infer, one, spec_of
from nbmem.virtual.tensors.value_bounds import most_of
from nbmem.virtual.tensors.values import worth_following
from nbmem.virtual.warnings import MASKED_SELECT, NONZERO

aten = torch.ops.aten


def _count(executor: Executor, call: OperatorCall, tensor: torch.Tensor, note: str) -> int:
    """Return how many elements are not zero, or a bound.

    Without a bound all are counted, with a note.
    """
    call.gpu.capture.check_wait(call.gpu.stream.handle)  # for the number
    cpu_values = executor.values.cpu_values(tensor) if is_virtual(tensor) else tensor
    if cpu_values is not None:
        with _C._DisableTorchDispatch():
            return int(torch.count_nonzero(cpu_values))
    most = most_of(executor.values, tensor) if is_virtual(tensor) else None
    if most is not None and most < tensor.numel():
        return most  # The program itself has set no more.
    call.gpu.note(note)
    return tensor.numel()


def check(tensor: torch.Tensor, found: Any) -> None:
    """Refuse what `x[...]` refuses as an index.

    Raises:
        IndexError: An index has a type of its own, or a mask another shape than what it masks.
        RuntimeError: What is indexed is on the CPU, and an index is not.
    """
    if not is_virtual(tensor) and any(is_virtual(index) for index in found if index is not None):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
        )
    at = 0
    for index in found:
        if index is None:
            at += 1
            continue
        if index.dtype not in (torch.int64, torch.int32, torch.bool, torch.uint8):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        if index.dtype not in (torch.bool, torch.uint8):
            at += 1
            continue
        for axis, size in enumerate(index.size()):
            if at + axis >= tensor.dim() or size != tensor.size(at + axis):
                raise IndexError(
                    f"The shape of the mask {list(index.size())} at index {axis} does not match "
                    f"the shape of the indexed tensor {list(tensor.size())} at index {at + axis}"
                )
        at += index.dim()


def nonzero(executor: Executor, call: OperatorCall) -> Any:
    """Run `nonzero`, whose result the card stores transposed.

    If all elements are taken to be nonzero, their indices are known.
    """
    tensor = call.args[0]
    found = _count(executor, call, tensor, NONZERO)
    made = _indices(executor, call, tensor, found)
    if found == tensor.numel() and worth_following(made):
        # If all are taken as nonzero, the indices are known: a loop over experts gets each once.
        with _C._DisableTorchDispatch():
            every = torch.ones((), dtype=torch.bool).expand(tensor.size()).nonzero()
        executor.values.teach(made, every)
    return made


def _indices(executor: Executor, call: OperatorCall, tensor: torch.Tensor, found: int) -> Any:
    spec = spec_of((found, tensor.dim()), torch.int64, 0, (1, max(1, found)))
    return executor.deliver(_call(call, aten.nonzero.default, tensor), Results(spec, (spec,)))


def _call(call: OperatorCall, func: Any, *args: Any) -> OperatorCall:
    """Create the call of an operator that the call's kernel makes."""
    inner = OperatorCall(func, args, {})
    inner.gpu = call.gpu
    return inner


def masked_select(executor: Executor, call: OperatorCall) -> Any:
    """Run `masked_select`, whose mask becomes indices first."""
    tensor, mask = call.args
    size = torch.broadcast_shapes(tensor.size(), mask.size(), (1,))  # A number is a row of one.
    found = _count(executor, call, mask, MASKED_SELECT) * (size.numel() // max(1, mask.numel()))
    with executor:
        indices = _indices(executor, call, mask.expand(size), found)
    made = executor.deliver(call, one((found,), tensor.dtype))
    del indices
    return made


def index(executor: Executor, call: OperatorCall) -> Any:
    """Run `index` with masks as indices, and indices on the card.

    Returns NotImplemented if all of them already are.
    """
    tensor, indices = call.args
    check(tensor, indices)
    if all(i is None or (is_virtual(i) and not _is_mask(i)) for i in indices):
        return NotImplemented
    with executor:
        plain = _on_card(executor, call, indices)
        return call.func(tensor, plain)


def index_put(executor: Executor, call: OperatorCall) -> Any:
    """Run `index_put` with masks as indices, and indices on the card.

    Writing by a mask is `x[mask] = y`. A number on the CPU is copied to the card if it fills no
    mask. Returns NotImplemented if nothing is to be converted.
    """
    tensor, indices, *rest = call.args
    check(tensor, indices)
    values = rest[0]
    if all(i is None or (is_virtual(i) and not _is_mask(i)) for i in indices):
        if is_virtual(values):
            return NotImplemented
        with executor:
            if call.func is aten.index_put.default:
                made = tensor.clone()
                return aten.index_put_.default(made, indices, *rest, **call.kwargs)
            moved = values.to(LAZY[call.gpu.index])
            return call.func(tensor, indices, moved, *rest[1:], **call.kwargs)
    if call.argument("accumulate") and len(indices) == 1 and _is_mask(indices[0]):
        return _add_by_mask(executor, call)
    if call.argument("accumulate") and not any(i is not None and is_virtual(i) for i in indices):
        return _add_at_cpu_indices(executor, call)
    if call.func is aten.index_put.default:
        with executor:
            made = tensor.clone()
            return aten.index_put_.default(made, indices, *rest, **call.kwargs)
    with executor:
        if values.numel() == 1 and not is_virtual(values) and any(map(_is_mask, indices)):
            return _result_of_write(executor, call)  # A masked fill: no indices are made.
        plain = _on_card(executor, call, indices)
        found = next(i for i in plain if i is not None).numel()
        if values.dim() and values.size(0) not in (1, found) and any(map(_is_mask, indices)):
            # The mask's true count is the value's length, or the value is a row for each.
            return _result_of_write(executor, call)
        return call.func(tensor, plain, *rest, **call.kwargs)


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _add_by_mask(executor: Executor, call: OperatorCall) -> Any:
    """Run `x[mask] += y`, which the gradient of `x[mask]` consists of, too.

    If the mask is unknown, the number of values may be the number that it selects.
    """
    tensor, (mask,), values = call.args[:3]
    known = executor.values.cpu_values(mask) if is_virtual(mask) else mask
    a_row_each = known is None and values.dim() and values.size(0) != 1
    found = values.size(0) if a_row_each else _count(executor, call, mask, NONZERO)
    place = torch.empty(found, dtype=torch.int64, device="meta")
    plain = (tensor, [place] * mask.dim(), *call.args[2:])
    inner = _call(call, call.func, *plain)
    inner.kwargs = call.kwargs
    results = infer(inner)
    plan = MemoryPlan(
        tuple(index_kernels.put_by_mask(_launch(inner, results), as_meta(mask), found))
    )
    return executor.deliver(call, results, plan)


def _add_at_cpu_indices(executor: Executor, call: OperatorCall) -> Any:
    """Run an accumulating `index_put` at indices on the CPU.

    Their indices are computed on the CPU.
    """
    with executor:
        values = call.args[2].to(LAZY[call.gpu.index])
    inner = _call(call, call.func, *call.args[:2], values, *call.args[3:])
    inner.kwargs = call.kwargs
    results = infer(inner)
    plan = MemoryPlan(tuple(index_kernels.put_at_cpu_indices(_launch(inner, results))))
    return executor.deliver(inner, results, plan)


def _launch(call: OperatorCall, results: Results) -> Launch:
    """Return a kernel's arguments, with the rules of the card's release."""
    args, kwargs = call.map(as_meta)
    inner = OperatorCall(call.func, args, kwargs)
    return Launch(inner, results.fresh, call.gpu.card, rules=call.gpu.rules)


def _result_of_write(executor: Executor, call: OperatorCall) -> Any:
    """Return the call's result, which takes memory only if it is new."""
    if call.func is aten.index_put.default:
        return executor.execute(call)
    executor.values.follow(call, [])
    return call.args[0]


def _on_card(executor: Executor, call: OperatorCall, indices: Any) -> list[torch.Tensor | None]:
    """Return indices on the card, with masks as indices."""
    plain: list[torch.Tensor | None] = []
    for at in indices:
        if at is None:
            plain.append(None)
        elif _is_mask(at):
            found = at.nonzero()
            if is_virtual(at) and executor.values.cpu_values(at) is None:
                executor.values.forget(found)  # What is written there is not known.
            plain.extend(found.unbind(1))
        else:
            plain.append(at)
    moved = [i if i is None or is_virtual(i) else i.to(LAZY[call.gpu.index]) for i in plain]
    for place in range(len(moved)):
        moved[place] = _converted(moved[place], is_moved=moved[place] is not plain[place])
    return moved


def _converted(index: torch.Tensor | None, *, is_moved: bool) -> torch.Tensor | None:
    """Convert an index that was copied to the card to 64 bits.

    Other indices are converted by the kernel itself.
    """
    return index.long() if is_moved and index is not None else index


def masked_scatter_backward(
    grad: torch.Tensor, mask: torch.Tensor, sizes: list[int]
) -> torch.Tensor:
    """Return the selected gradient, with zeros for values not taken."""
    selected = grad.masked_select(mask)
    missing = torch.Size(sizes).numel() - selected.numel()
    if missing > 0:
        zeros = torch.zeros(missing, dtype=grad.dtype, device=grad.device)
        whole = torch.cat([selected, zeros])
        del zeros  # The last one of a list is freed first.
        selected = whole
    return selected.view(sizes)


def _clamped(tensor: torch.Tensor, indices: Any) -> list[torch.Tensor | None]:
    sizes = zip(indices, tensor.size(), strict=False)
    return [None if i is None else i.clamp(-size, size - 1) for i, size in sizes]


def unsafe_masked_index(
    tensor: torch.Tensor, mask: torch.Tensor, indices: Any, fill: float
) -> torch.Tensor:
    """Read at clamped indices, and fill what the mask leaves out.

    Indices that the mask leaves out may have any value.
    """
    clamped = _clamped(tensor, indices)
    found = aten.index.Tensor(tensor, clamped)
    made = found.masked_fill(mask.logical_not(), fill)
    del found
    _free_in_order(clamped)
    return made


def unsafe_masked_index_put(executor: Executor, call: OperatorCall) -> Any:
    """Run the gradient of `_unsafe_masked_index`.

    Values outside of the mask are zeros. The zeros that autograd gives to add to are freed
    before the indices, as soon as they are copied.
    """
    tensor, mask, indices, values = call.args
    with executor:
        clamped = _clamped(tensor, indices)
        kept = values.masked_fill(mask.logical_not(), 0)
        made = aten.index_put.default(tensor, clamped, kept, True)
        del kept, values
        if in_backward() and not runs.stack[-1]:
            executor.storages.resize(tensor.untyped_storage(), 0)
        _free_in_order(clamped)
        return made


def _free_in_order(tensors: list[torch.Tensor | None]) -> None:
    """Free the tensors of a list as C++ does: the first one first."""
    while tensors:
        del tensors[0]
