"""Shapes that depend on values: exact where the values are known, else a bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import LAZY, is_virtual
from nbmem.virtual.notes import BINS, COUNTS, MASKED_SELECT, NMS, NONZERO, REPEAT, UNIQUE
from nbmem.virtual.operators import index as indexing
from nbmem.virtual.operators import refusals
from nbmem.virtual.operators.operator import Launch, Plan
from nbmem.virtual.operators.table import plan_of
from nbmem.virtual.tensors.bounds import most_of
from nbmem.virtual.tensors.calls import Call
from nbmem.virtual.tensors.shapes import Results, TensorSpec, as_meta, infer, spec_of
from nbmem.virtual.tensors.values import worth_following

if TYPE_CHECKING:
    from nbmem.virtual.operators.dispatch import CardMode

aten = torch.ops.aten


def _count(mode: CardMode, call: Call, tensor: torch.Tensor, note: str) -> int:
    """How many elements are not zero; all of them, with a note, where nobody knows."""
    twin = mode.values.twin(tensor) if is_virtual(tensor) else tensor
    if twin is not None:
        with _C._DisableTorchDispatch():
            return int(torch.count_nonzero(twin))
    most = most_of(mode.values, tensor) if is_virtual(tensor) else None
    if most is not None and most < tensor.numel():
        return most  # The program itself has set no more.
    call.gpu.note(note)
    return tensor.numel()


def _deliver(mode: CardMode, call: Call, *sizes: tuple[tuple[int, ...], torch.dtype]) -> Any:
    return _deliver_specs(
        mode, call, *(spec_of(size, dtype, at) for at, (size, dtype) in enumerate(sizes))
    )


def _deliver_specs(mode: CardMode, call: Call, *specs: TensorSpec) -> Any:
    results = Results(specs[0] if len(specs) == 1 else specs, specs)
    return mode.deliver(call, results, plan_of(call, results))


def nonzero(mode: CardMode, call: Call) -> Any:
    """Indices of what is not zero; the card stores them transposed."""
    tensor = call.args[0]
    found = _count(mode, call, tensor, NONZERO)
    made = _indices(mode, call, tensor, found)
    if found == tensor.numel() and worth_following(made):
        # Where all are assumed, it is known which: a loop over experts sees each of them once.
        with _C._DisableTorchDispatch():
            every = torch.ones((), dtype=torch.bool).expand(tensor.size()).nonzero()
        mode.values.teach(made, every)
    return made


def _indices(mode: CardMode, call: Call, tensor: torch.Tensor, found: int) -> Any:
    spec = spec_of((found, tensor.dim()), torch.int64, 0, (1, max(1, found)))
    return _deliver_specs(mode, _call(call, aten.nonzero.default, tensor), spec)


def _call(call: Call, func: Any, *args: Any) -> Call:
    """What the kernel of a call calls itself."""
    inner = Call(func, args, {})
    inner.gpu = call.gpu
    return inner


def masked_select(mode: CardMode, call: Call) -> Any:
    """The elements where a mask holds; the mask becomes indices first."""
    tensor, mask = call.args
    size = torch.broadcast_shapes(tensor.size(), mask.size())
    found = _count(mode, call, mask, MASKED_SELECT) * (size.numel() // max(1, mask.numel()))
    with mode:
        indices = _indices(mode, call, mask.expand(size), found)
    made = _deliver(mode, call, ((found,), tensor.dtype))
    del indices
    return made


def index(mode: CardMode, call: Call) -> Any:
    """Masks become indices first, and indices come to the card, as in the kernel."""
    tensor, indices = call.args
    refusals.indices(tensor, indices)
    if all(i is None or (is_virtual(i) and not _is_mask(i)) for i in indices):
        return NotImplemented
    with mode:
        plain = _on_card(mode, call, indices)
        return call.func(tensor, plain)


def index_put(mode: CardMode, call: Call) -> Any:
    """The same for `x[mask] = y`; a number comes to the card where no mask is filled with it."""
    tensor, indices, *rest = call.args
    refusals.indices(tensor, indices)
    values = rest[0]
    if all(i is None or (is_virtual(i) and not _is_mask(i)) for i in indices):
        if is_virtual(values):
            return NotImplemented
        with mode:
            moved = values.to(LAZY[call.gpu.index])
            return call.func(tensor, indices, moved, *rest[1:], **call.kwargs)
    if call.argument("accumulate") and len(indices) == 1 and _is_mask(indices[0]):
        return _add_by_mask(mode, call)
    with mode:
        if values.numel() == 1 and not is_virtual(values) and any(map(_is_mask, indices)):
            return _written(mode, call)  # A masked fill: no indices are made.
        plain = _on_card(mode, call, indices)
        found = next(i for i in plain if i is not None).numel()
        if values.dim() and values.size(0) not in (1, found) and any(map(_is_mask, indices)):
            # The mask's true count is the value's length, or the value is a row for each.
            return _written(mode, call)
        return call.func(tensor, plain, *rest, **call.kwargs)


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _add_by_mask(mode: CardMode, call: Call) -> Any:
    """`x[mask] += y` and what a gradient of `x[mask]` is made of: the values say how many."""
    tensor, (mask,), values = call.args[:3]
    known = values.dim() and values.size(0) != 1
    found = values.size(0) if known else _count(mode, call, mask, NONZERO)
    place = torch.empty(found, dtype=torch.int64, device="meta")
    plain = (tensor, [place] * mask.dim(), *call.args[2:])
    inner = _call(call, call.func, *plain)
    inner.kwargs = call.kwargs
    results = infer(inner)
    args, kwargs = inner.map(as_meta)
    launch = Launch(Call(call.func, args, kwargs), results.fresh, call.gpu.card)
    plan = Plan(tuple(indexing.put_by_mask(launch, as_meta(mask), found)))
    return mode.deliver(call, results, plan)


def _written(mode: CardMode, call: Call) -> Any:
    """The call's result, with no memory of its own but for a result that is new."""
    if call.func is aten.index_put.default:
        return mode.execute(call)
    mode.values.follow(call, [])
    return call.args[0]


def _on_card(mode: CardMode, call: Call, indices: Any) -> list[torch.Tensor | None]:
    """Masks as indices, and all of them beside the tensor."""
    plain: list[torch.Tensor | None] = []
    for at in indices:
        if at is None:
            plain.append(None)
        elif _is_mask(at):
            found = at.nonzero()
            if is_virtual(at) and mode.values.twin(at) is None:
                mode.values.forget(found)  # What is written there is not known.
            plain.extend(found.unbind(1))
        else:
            plain.append(at)
    return [i if i is None or is_virtual(i) else i.to(LAZY[call.gpu.index]) for i in plain]


def unique(mode: CardMode, call: Call) -> Any:
    """Different values of `_unique2` and its kin: at most as many as there are elements or rows."""
    tensor, dim = call.args[0], call.argument("dim")
    twin = mode.values.twin(tensor)
    if twin is not None:
        with _C._DisableTorchDispatch():
            args, kwargs = call.map(lambda _: twin)
            found = int(call.func(*args, **kwargs)[0].size(dim or 0))
    else:
        call.gpu.note(UNIQUE)
        found = tensor.numel() if dim is None else tensor.size(dim)
    size = [found]
    if dim is not None:
        size = list(tensor.size())
        size[dim] = found
    whole = tuple(tensor.size()) if dim is None else (tensor.size(dim),)
    counts = found if call.argument("return_counts") else 0
    specs = [
        spec_of(tuple(size), tensor.dtype, 0),
        spec_of(whole if call.argument("return_inverse") else (0,), torch.int64, 1),
        spec_of((counts,), torch.int64, 2),
    ]
    if call.func is aten._unique2.default and tensor.dtype is not torch.bool:
        # They are cut to size in storages that were made for the case that all differ.
        specs[0] = replace(specs[0], nbytes=tensor.numel() * tensor.element_size())
        specs[2] = replace(specs[2], nbytes=tensor.numel() * 8 if counts else 0)
    return _deliver_specs(mode, call, *specs)


def repeat_interleave(mode: CardMode, call: Call) -> Any:
    """Indices repeated as often as a tensor says."""
    repeats = call.args[0]
    size = call.argument("output_size")
    if size is None:
        twin = mode.values.twin(repeats)
        if twin is None:
            call.gpu.note(REPEAT)
        size = int(twin.sum()) if twin is not None else repeats.numel()
    return _deliver(mode, call, ((int(size),), repeats.dtype))


def bincount(mode: CardMode, call: Call) -> Any:
    """One count for each value that occurs."""
    tensor, weights = call.args[0], call.argument("weights")
    bins = int(call.argument("minlength", 0) or 0)
    twin = mode.values.twin(tensor)
    if twin is not None and twin.numel():
        bins = max(bins, int(twin.max()) + 1)
    elif not bins:
        call.gpu.note(BINS)
        bins = 1
    exact = weights is None
    made = _deliver(mode, call, ((bins,), torch.int64 if exact else _sum_type(weights)))
    if exact:
        _spread(mode, call, tensor, made)
    return made


def _sum_type(weights: torch.Tensor) -> torch.dtype:
    return torch.float32 if weights.dtype is torch.float32 else torch.float64


def histc(mode: CardMode, call: Call) -> Any:
    """The number of bins is known."""
    made = mode.execute(call)
    _spread(mode, call, call.args[0], made)
    return made


def _spread(mode: CardMode, call: Call, tensor: torch.Tensor, counts: torch.Tensor) -> None:
    """Where counts are unknown, the same in each bin: their sum is what programs rely on."""
    if mode.values.twin(counts) is None:
        call.gpu.note(COUNTS)
        share, rest = divmod(tensor.numel(), counts.numel())
        with _C._DisableTorchDispatch():
            spread = torch.full(counts.size(), share, dtype=counts.dtype)
            spread[:rest] += 1
        mode.values.teach(counts, spread)


def pack(mode: CardMode, call: Call) -> Any:
    """Sequences of known lengths, one after the other; the batch sizes stay on the CPU."""
    source, lengths, batch_first = call.args
    with _C._DisableTorchDispatch():
        steps = torch.arange(int(lengths.max()))
        sizes = (lengths[:, None] > steps).sum(0)
    rest = tuple(source.size()[2:])
    del batch_first
    packed = mode.allocate(call.gpu, (spec_of((int(lengths.sum()), *rest), source.dtype, 0),))[0]
    return packed, sizes


def nms(mode: CardMode, call: Call) -> Any:
    """Indices of the boxes that no better box covers."""
    boxes = call.args[0]
    if boxes.size(0):
        call.gpu.note(NMS)
    return _deliver(mode, call, ((boxes.size(0),), torch.int64))


def left_aligned(mode: CardMode, call: Call) -> bool:
    """Whether a padding mask allows TransformerEncoder to cut the padding off: it keeps it."""
    del mode, call
    return False


SPECIAL: dict[Any, Any] = {
    aten._nested_tensor_from_mask_left_aligned.default: left_aligned,
    aten._pack_padded_sequence.default: pack,
    aten.nonzero.default: nonzero,
    aten.masked_select.default: masked_select,
    aten.index.Tensor: index,
    aten.index_put.default: index_put,
    aten.index_put_.default: index_put,
    aten._index_put_impl_.default: index_put,
    aten._unique2.default: unique,
    aten.unique_consecutive.default: unique,
    aten.unique_dim.default: unique,
    aten.unique_dim_consecutive.default: unique,
    aten.histc.default: histc,
    aten.repeat_interleave.Tensor: repeat_interleave,
    aten.bincount.default: bincount,
}
FOREIGN: dict[str, Any] = {"torchvision::nms": nms}
"""Operators of other libraries, by name."""
