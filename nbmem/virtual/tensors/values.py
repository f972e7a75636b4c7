"""Small values that are known all the same, and stand-ins for those that are not.

Integer, bool and tiny float tensors that come from the CPU or from factories are computed on the
CPU beside the card (their twin), so that masks, lengths, GradScaler's scale and counters lead the
program as on a real card. A stand-in for anything else is what a healthy run would give.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.devices import CPU, is_virtual
from nbmem.virtual.frames import line_outside
from nbmem.virtual.notes import LOOP, VALUES
from nbmem.virtual.tensors.bounds import counted
from nbmem.virtual.tensors.calls import Call, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from nbmem.virtual.tensors.host.unwritten import Unwritten
    from nbmem.virtual.tensors.storages import Block, Storages

aten = torch.ops.aten
WHOLE_BYTES = 1 << 20
"""Integers and bools are followed up to this many bytes: the positions of 32 texts of 4,096 tokens,
from which transformers reads whether each row is one text and needs no mask."""
LARGE = 1 << 18
"""Elements from which a copy to the CPU holds zeros instead of a stand-in."""
PATIENCE = 256
"""How often one line gets the same answer to an unknown condition."""
FLOATS = 16
"""Floats are followed up to this many elements: scales and averages, not activations."""

_HEALTHY: dict[Any, bool] = {
    aten.isnan.default: False,
    aten.isinf.default: False,
    aten.isclose.default: True,
    # Asked by torch.distributions, whether parameters and samples are what they may be.
    aten._is_all_true.default: True,
    aten._is_any_true.default: False,
}
_PASS_ON = frozenset(
    {
        aten.all.default, aten.all.dim, aten.any.default, aten.any.dim, aten.view.default,
        aten.clone.default, aten.abs.default, aten._to_copy.default, aten.logical_or.default,
        aten.logical_and.default, aten.mul.Tensor, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
    }
)  # fmt: skip
_COUNTS = frozenset({aten.sum, aten.count_nonzero})
_COMPARES = frozenset({aten.eq, aten.ne, aten.gt, aten.ge, aten.lt, aten.le})
_FLIP = frozenset({aten.logical_not.default, aten.bitwise_not.default})
_ABSORBS = {
    aten.logical_or.default: True,
    aten.bitwise_or.Tensor: True,
    aten.logical_and.default: False,
    aten.bitwise_and.Tensor: False,
    aten.mul.Tensor: False,
}
_OVERWRITES = frozenset({aten.copy_.default, aten.zero_.default, aten.fill_.Scalar})
_UNDEFINED = frozenset(
    {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default,
     aten.new_empty.default, aten.new_empty_strided.default}
)  # fmt: skip
_BY_GEOMETRY = frozenset(
    {aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
     aten.new_zeros.default, aten.new_ones.default, aten.new_full.default}
)  # fmt: skip
# A healthy run finds no infinity, so the flag stays as it is while the gradients are unknown.
_HARMLESS = frozenset({aten._amp_foreach_non_finite_check_and_unscale_.default})


def worth_following(tensor: torch.Tensor) -> bool:
    """Whether values of this type and size decide what programs do."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.numel() <= FLOATS
    return tensor.numel() * tensor.element_size() <= WHOLE_BYTES


class Values:
    """What is known of the values on the card."""

    def __init__(self, note: Callable[[str], None], storages: Storages, host: Unwritten) -> None:
        self._note = note
        self.storages = storages
        self._host = host
        self._asked: Counter[tuple[CodeType, int]] = Counter()

    def twin(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A CPU view of a virtual tensor's values; None if they are not known."""
        block = self.storages.of(tensor)
        twin = None if block is None else block.twin
        if twin is None and tensor.numel():
            return None
        with _C._DisableTorchDispatch():
            empty = torch.empty(0, dtype=tensor.dtype, device=CPU)
            storage = empty.untyped_storage() if twin is None else twin
            return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())

    def teach(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Remember the values of a fresh virtual tensor."""
        block = self.storages.of(tensor)
        if block is None or not worth_following(tensor) or tensor.storage_offset():
            return
        with _C._DisableTorchDispatch():
            twin = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU
            )
            twin.copy_(value)
        if twin.untyped_storage().nbytes() == tensor.untyped_storage().nbytes():
            block.twin = twin.untyped_storage()

    def forget(self, tensor: torch.Tensor) -> None:
        """The values of a tensor's storage are no longer known."""
        block = self.storages.of(tensor)
        if block is not None:
            block.twin = block.healthy = block.most = None

    @counted
    def follow(self, call: Call, fresh: list[torch.Tensor]) -> None:
        """Compute on the twins what the call computes on the card, or forget what it changed."""
        mutates = bool(facts_of(call.func).mutates)
        if call.func in _UNDEFINED or not (mutates or fresh):
            return
        if (mutates or any(worth_following(t) for t in fresh)) and self._follow_exactly(
            call, fresh
        ):
            return
        if len(fresh) == 1 and self._absorbed(call, fresh[0]):
            return
        if mutates and call.func not in _HARMLESS:
            for tensor in call.mutated():
                if is_virtual(tensor):
                    self.forget(tensor)
        if len(fresh) == 1 and fresh[0].dtype in (torch.bool, torch.int64):
            self._follow_health(call, fresh[0])

    def _follow_exactly(self, call: Call, fresh: list[torch.Tensor]) -> bool:
        if facts_of(call.func).random:
            return False
        if call.func in _OVERWRITES and self._overwrite(call):
            return True
        twins: dict[int, torch.Tensor] = {}
        for tensor in call.tensors:
            if is_virtual(tensor):
                twin = _shape(tensor) if call.func in _BY_GEOMETRY else self.twin(tensor)
                if twin is None:
                    return False
                twins[id(tensor)] = twin
        args, kwargs = call.map(lambda t: twins.get(id(t), t))
        for name, arg in kwargs.items():
            if isinstance(arg, torch.device):
                kwargs[name] = CPU
        try:
            with _C._DisableTorchDispatch(), torch.no_grad():
                returned = call.func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
            return False
        if fresh:
            results = returned if isinstance(returned, (list, tuple)) else (returned,)
            values = [r for r in results if isinstance(r, torch.Tensor)]
            if len(values) == len(fresh):
                for tensor, value in zip(fresh, values, strict=True):
                    if tuple(tensor.size()) == tuple(value.size()):
                        self.teach(tensor, value)
        return True

    def _absorbed(self, call: Call, result: torch.Tensor) -> bool:
        """`unknown | True` is True and `unknown & 0` is 0, for whole tensors."""
        absorbs = _ABSORBS.get(call.func)
        if absorbs is None or result.dtype.is_floating_point or result.dtype.is_complex:
            return False
        if absorbs and result.dtype is not torch.bool:
            return False
        for tensor in call.tensors:
            twin = self.twin(tensor) if is_virtual(tensor) else tensor
            with _C._DisableTorchDispatch():
                if twin is not None and bool((twin == absorbs).all()):
                    value = torch.full((), absorbs, dtype=result.dtype, device=CPU)
                    self.teach(result, value.expand(result.size()))
                    return True
        return False

    def _overwrite(self, call: Call) -> bool:
        """A whole storage gets a known value, whatever it held before."""
        target = call.args[0]
        if not is_virtual(target) or target.storage_offset():
            return False
        if target.numel() * target.element_size() != target.untyped_storage().nbytes():
            return False
        with _C._DisableTorchDispatch():
            if call.func is aten.copy_.default:
                source = call.args[1]
                value = self.twin(source) if is_virtual(source) else source
                if value is None:
                    return False
                value = value.expand(target.size())
            else:
                number = call.args[1] if call.func is aten.fill_.Scalar else 0
                value = torch.full((), number, dtype=target.dtype, device=CPU).expand(target.size())
        if not worth_following(target):
            return False
        self.teach(target, value)
        return True

    def _follow_health(self, call: Call, result: torch.Tensor) -> None:
        block = self.storages.of(result)
        if block is None:
            return
        block.healthy = self._health(call)

    def _health(self, call: Call) -> bool | None:
        func = call.func
        if func in _HEALTHY:
            return _HEALTHY[func]
        if func in (aten.eq.Scalar, aten.ne.Scalar) and math.isinf(call.args[1]):
            return func is aten.ne.Scalar
        if func in (aten.eq.Tensor, aten.ne.Tensor) and call.args[0] is call.args[1]:
            return func is aten.eq.Tensor
        blocks = [self.storages.of(t) for t in call.tensors if is_virtual(t)]
        flags = {None if block is None else block.healthy for block in blocks}
        flag = flags.pop() if len(flags) == 1 else None
        if flag is None:
            return None
        if func.overloadpacket in _COUNTS:  # Of none there are 0; a flag does not say how many.
            return None if flag else False
        if func.overloadpacket in _COMPARES and not isinstance(call.args[1], torch.Tensor):
            with _C._DisableTorchDispatch():
                return bool(func(torch.full((), int(flag), device=CPU), call.args[1]))
        return (not flag) if func in _FLIP else flag if func in _PASS_ON else None

    def scalar(self, tensor: torch.Tensor) -> Any:
        """What `.item()` answers."""
        twin = self.twin(tensor)
        if twin is not None:
            with _C._DisableTorchDispatch():
                return twin.item()
        self._note(VALUES)
        block = self.storages.of(tensor)
        answer = stand_in(tensor.dtype, block)
        if tensor.dtype is torch.bool and (block is None or block.healthy is None):
            return self._until_loops_end(answer)
        return answer

    def _until_loops_end(self, answer: bool) -> bool:  # noqa: FBT001
        """`while not done.all()` ends on a card; here it does when the answer turns."""
        place = line_outside()
        self._asked[place] += 1
        if self._asked[place] % PATIENCE:
            return answer
        self._note(LOOP)
        return not answer

    def on_cpu(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """What a copy to the CPU holds."""
        twin = self.twin(tensor)
        dtype = dtype or tensor.dtype
        if twin is None and tensor.numel() > LARGE:
            self._note(VALUES)
            return self._zeros(tensor, dtype)
        with _C._DisableTorchDispatch():
            copy = torch.empty_strided(tensor.size(), dense(tensor), dtype=dtype, device=CPU)
            if twin is not None:
                return copy.copy_(twin)
            self._note(VALUES)
            return copy.fill_(stand_in(tensor.dtype, self.storages.of(tensor)))

    def _zeros(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Untouched pages cost nothing, so offloading takes no memory here."""
        try:
            return self._host.zeros(tuple(tensor.size()), dense(tensor), dtype)
        except MemoryError:  # More than this machine can even promise: one zero stands for all.
            with _C._DisableTorchDispatch():
                return torch.zeros((), dtype=dtype, device=CPU).expand(tensor.size())


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=tensor.dtype, device=CPU).expand(tensor.size())


def dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of a copy that keeps the tensor's memory format."""
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return torch.empty_like(meta).stride()


def stand_in(dtype: torch.dtype, block: Block | None) -> Any:
    """A plausible value: finite, not zero where a program might divide by it."""
    if dtype is torch.bool:
        return bool(block is not None and block.healthy)
    if dtype.is_complex or dtype.is_floating_point:
        return 1 + 0j if dtype.is_complex else 1.0
    return 0 if block is not None and block.healthy is False else 1
