"""Results of operators: shapes, strides and types, cached by call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import _C

from nbmem.virtual.devices import CPU, LAZY, META, cpp_device
from nbmem.virtual.tensors.global_switches import switches
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.unsupported import no_such_tensors

SMALL = 1 << 10
"""Elements up to which the CPU's kernel replaces a failing rule in Python."""
_HALVES = (torch.float16, torch.bfloat16)
_ALIKE = 100.0
"""Every type of numbers holds as much."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a call returns.

    Attributes:
        size: Its shape.
        stride: Its strides, in elements.
        offset: Where it begins in its storage, in elements.
        dtype: Its type.
        nbytes: Bytes of its storage.
        number: Which of the fresh results it is, in order.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    nbytes: int
    number: int


@dataclass(frozen=True, slots=True)
class ArgumentResult:
    """A result that is an argument, by its index among the call's tensors."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Shares:
    """A result in the storage of an earlier fresh result or an argument."""

    spec: TensorSpec
    result: int | None
    tensor: int | None


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that a call returns.

    Attributes:
        shape: The returned structure, with TensorSpec, ArgumentResult and Shares instead of
            tensors.
        fresh: The new tensors, in order.
    """

    shape: Any
    fresh: tuple[TensorSpec, ...]


def key_of(call: OperatorCall) -> tuple[Any, ...] | None:
    """Return a cache key for a call's results; None if it is not hashable."""
    parts: list[Any] = [call.func, call.gpu.index, torch.get_default_dtype(), switches()]
    part = _part_by_kind if facts_of(call.func).scales else _part
    try:
        parts.extend(part(arg) for arg in call.args)
        parts.extend((name, part(arg)) for name, arg in call.kwargs.items())
        key = tuple(parts)
        hash(key)
    except TypeError:
        return None
    return key


def _part(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return (arg.size(), arg.stride(), arg.dtype, cpp_device(arg))
    if isinstance(arg, (list, tuple)):
        return tuple([_part(item) for item in arg])
    # 1, 1.0 and True are equal, but not as arguments.
    return (type(arg), arg)


def _part_by_kind(arg: Any) -> Any:
    """Return a key part that ignores the value of small floats.

    Adam's step size is another one at every step. Numbers beyond `_ALIKE` are distinguished: they
    may be refused as too large for a type.
    """
    if type(arg) is float and -_ALIKE <= arg <= _ALIKE:
        return float
    if isinstance(arg, (list, tuple)):
        return tuple([_part_by_kind(item) for item in arg])
    return _part(arg)


def as_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Make a meta tensor with a tensor's geometry."""
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)
    if tensor.is_conj():
        meta = meta.conj()
    return meta


def infer(call: OperatorCall) -> Results:
    """Run the operator's shape rule.

    Raises:
        NotImplementedError: Torch has no shape rule for it.
    """
    try:
        results = _inferred(call, as_meta)
    except (TypeError, ZeroDivisionError):
        # Rules in Python divide by what may be zero, and check numbers that C++ takes for bools.
        if sum(tensor.numel() for tensor in call.tensors) > SMALL:
            raise
        return _inferred(call, _as_zeros, CPU)
    if isinstance(results.shape, TensorSpec) and _is_copied_first(call):
        wide = _inferred(call, _as_float)
        return one(results.shape.size, results.shape.dtype, wide.shape.stride)
    return results


def _inferred(
    call: OperatorCall,
    as_argument: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device = META,
) -> Results:
    metas: list[torch.Tensor] = []

    def change(tensor: torch.Tensor) -> torch.Tensor:
        metas.append(as_argument(tensor))
        return metas[-1]

    with _C._DisableTorchDispatch():
        args, kwargs = call.map(change)
        for name, arg in kwargs.items():
            if isinstance(arg, torch.device):
                kwargs[name] = device
        kwargs.pop("pin_memory", None)
        args = tuple(device if isinstance(arg, torch.device) else arg for arg in args)
        returned = call.func(*args, **kwargs)
    return _describe(returned, metas)


def _is_copied_first(call: OperatorCall) -> bool:
    """Return whether torch's shape rule loses strides of half arguments.

    That happens to tensors that are expanded or have gaps.

    Its references in Python convert half types to float32 by a copy. The copy has other strides
    than such a tensor. A kernel reads the tensor as it is (torch/_prims_common/wrappers.py).
    """
    return torch.Tag.pointwise in call.func.tags and any(
        t.dtype in _HALVES and not is_dense(t) for t in call.tensors
    )


def _as_float(tensor: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if tensor.dtype in _HALVES else tensor.dtype
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device=META)


def _as_zeros(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU)
    return made.zero_()


def _describe(returned: Any, metas: list[torch.Tensor]) -> Results:
    described = _Described(metas)
    return Results(described.node(returned), tuple(described.fresh))


class _Described:
    """Specs of what a shape rule returned.

    It is a class, for a recursive closure would be a reference cycle.
    """

    def __init__(self, metas: list[torch.Tensor]) -> None:
        self.fresh: list[TensorSpec] = []
        self._metas = metas
        self._first: dict[int, int] = {}
        self._storages = {meta.untyped_storage()._cdata: at for at, meta in enumerate(metas)}

    def node(self, value: Any) -> Any:
        """Return the spec of one returned value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            items = [self.node(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _tensor(self, value: torch.Tensor) -> Any:
        for at, meta in enumerate(self._metas):
            if meta is value:
                return ArgumentResult(at)
        if value.is_quantized:
            raise no_such_tensors("without a scale of the quantized type " + str(value.dtype))
        storage = value.untyped_storage()
        spec = TensorSpec(
            tuple(value.size()),
            value.stride(),
            value.storage_offset(),
            value.dtype,
            storage.nbytes(),
            len(self.fresh),
        )
        if storage._cdata in self._storages:
            return Shares(spec, None, self._storages[storage._cdata])
        if storage._cdata in self._first:
            return Shares(spec, self._first[storage._cdata], None)
        self._first[storage._cdata] = spec.number
        self.fresh.append(spec)
        return spec


def spec_of(
    size: tuple[int, ...], dtype: torch.dtype, number: int, stride: tuple[int, ...] | None = None
) -> TensorSpec:
    """Make the spec of a fresh tensor; contiguous without strides."""
    meta = (
        torch.empty(size, dtype=dtype, device=META)
        if stride is None
        else torch.empty_strided(size, stride, dtype=dtype, device=META)
    )
    nbytes = meta.untyped_storage().nbytes()
    return TensorSpec(tuple(size), meta.stride(), 0, dtype, nbytes, number)


def one(size: Sequence[int], dtype: torch.dtype, stride: tuple[int, ...] | None = None) -> Results:
    """Make the spec of one fresh result; contiguous without strides."""
    spec = spec_of(tuple(size), dtype, 0, stride)
    return Results(spec, (spec,))


def several(*sizes: tuple[Sequence[int], torch.dtype]) -> Results:
    """Make the specs of fresh, contiguous results."""
    specs = tuple(spec_of(tuple(size), dtype, at) for at, (size, dtype) in enumerate(sizes))
    return Results(specs, specs)


def like(name: str) -> Callable[[OperatorCall], Results]:
    """Make a shape rule for one contiguous result like a named argument."""

    def rule(call: OperatorCall) -> Results:
        tensor = call.argument(name)
        return one(tensor.size(), tensor.dtype)

    return rule


def dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a copy that keeps the memory format."""
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)
    return torch.empty_like(meta).stride()


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether elements fill a stretch of memory without overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_expanded(tensor: torch.Tensor) -> bool:
    """Return whether several elements share one place in memory.

    That is so if a dimension of more than one element has stride 0.
    """
    return any(
        not stride and size > 1 for stride, size in zip(tensor.stride(), tensor.size(), strict=True)
    )


def check_devices(call: OperatorCall, *, with_cpu: bool = False) -> None:
    """Raise if a call mixes devices; CPU scalars are allowed.

    Args:
        call: The operator and its arguments.
        with_cpu: Whether it takes CPU tensors of any shape, too.

    Raises:
        RuntimeError: With torch's wording.
    """
    home = LAZY[call.gpu.index]
    for tensor in call.tensors:
        device = cpp_device(tensor)
        if device == home or (device == CPU and (with_cpu or not tensor.dim())):
            continue
        if device == CPU or device.type == home.type:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:{home.index} and {tensor.device}!"
            )
