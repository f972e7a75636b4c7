"""Checks for writes to memory that a call uses more than once.

Examples are an expanded tensor, or a result that overlaps an input.

Code that all devices share decides which operators refuse it. If a call's geometry could be
refused, the CPU's kernel runs on CPU tensors of the same geometry. Pointwise operators need
no such run, because TensorIterator refuses every overlap.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/MemoryOverlap.cpp;
TensorIterator.cpp: compute_mem_overlaps
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nbmem.virtual.devices import CPU
from nbmem.virtual.operator_model.value_checks import run_on_cpu
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.shapes import is_dense, is_expanded

_SEVERAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)
_SHARED = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)
_REFUSED = "refer to a single memory location", "refers to a single memory location"
_ASKED_MOST = 1 << 24
"""Bytes of storage, and elements, up to which the CPU's kernel checks."""
_FAST = ("aten::_foreach_", "aten::_fused_", "aten::_amp_")
"""Kernels of lists, which compare no pair of tensors on a card."""
_KNOWN_MOST = 1000
_known: dict[Any, str] = {}


def refuse_overlaps(call: OperatorCall) -> None:
    """Raise torch's error if a call writes to memory that overlaps.

    Raises:
        RuntimeError: As the kernel would.
    """
    facts = facts_of(call.func)
    if not facts.mutates or facts.reshapes or call.func.namespace != "aten":
        return
    found = next(_overlaps(call), "")
    if found and torch.Tag.pointwise not in call.func.tags:
        found = _cpu_overlap_error(call)
    if found:
        raise RuntimeError(found)


def _overlaps(call: OperatorCall) -> Iterator[str]:
    """Yield the errors that a pointwise operator would raise.

    Other operators' overlaps are confirmed with the CPU's kernel.
    """
    pointwise = torch.Tag.pointwise in call.func.tags
    written = [t for t in call.mutated() if t.layout is torch.strided]
    if any(is_expanded(tensor) for tensor in written):
        yield _SEVERAL
    if call.func._schema.name.startswith(_FAST):
        return
    # An `out` tensor may be resized first; its kernel then checks what the new memory shares.
    resized = isinstance(facts_of(call.func).mutates[0], str) and not pointwise
    for tensor in written:
        read = [other for other in call.tensors if other.layout is torch.strided]
        same = next(place for place, other in enumerate(read) if other is tensor)
        del read[same]  # the result itself; a second time it is an argument
        beside = [other for other in read if _storage(other) == _storage(tensor)]
        if any(resized or _share(tensor, other, partly=pointwise) for other in beside):
            yield _SHARED


def _share(one: torch.Tensor, other: torch.Tensor, *, partly: bool) -> bool:
    """Return True if two tensors are known to share elements.

    Tensors that are not dense are taken to share none.

    Args:
        one: A tensor.
        other: Another of the same storage.
        partly: Two views of the same elements in the same order share none.
    """
    if not (one.numel() and other.numel() and is_dense(one) and is_dense(other)):
        return False
    (begin, end), (first, last) = _stretch(one), _stretch(other)
    if (begin, end) == (first, last) and one.stride() == other.stride():
        return not partly
    return begin < last and first < end


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.storage_offset() * tensor.element_size()
    return begin, begin + tensor.numel() * tensor.element_size()


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.dtype


def _cpu_overlap_error(call: OperatorCall) -> str:
    """Return the cached overlap error of the CPU kernel; "" without one.

    The result is also "" if the kernel refuses something else, or the tensors are too large.
    """
    numbers: dict[int, int] = {}
    key = (
        call.func,
        *(
            (numbers.setdefault(_storage(t), len(numbers)), t.storage_offset(), *_form(t))
            for t in call.tensors
        ),
    )
    found = _known.get(key)
    if found is None:
        if len(_known) >= _KNOWN_MOST:
            _known.clear()
        found = _known[key] = _is_checked(call)
    return found


def _is_checked(call: OperatorCall) -> str:
    if any(t.layout is not torch.strided or t.numel() > _ASKED_MOST for t in call.tensors):
        return ""
    sizes = {_storage(t): t.untyped_storage().nbytes() for t in call.tensors}
    if sum(sizes.values()) > _ASKED_MOST:
        return ""
    on_cpu: dict[Any, Any] = {}
    known: dict[int, torch.Tensor] = {}

    def like(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:  # one that is resized is so wherever it stands
            name = _storage(tensor)
            if name not in on_cpu:
                values = torch.zeros(sizes[name], dtype=torch.uint8, device=CPU)
                on_cpu[name] = values.untyped_storage()
            cpu_values: Any = torch.empty(0, dtype=tensor.dtype, device=CPU)
            place = (tensor.storage_offset(), tensor.size(), tensor.stride())
            known[id(tensor)] = cpu_values.set_(on_cpu[name], *place)
        return known[id(tensor)]

    try:
        run_on_cpu(call, like)
    except (RuntimeError, IndexError, TypeError, ValueError) as err:
        text = str(err).partition("\n")[0]
        return text if any(part in text for part in _REFUSED) else ""
    return ""
