"""Small values that are known, and stand-ins for values that are not.

Integer, bool and tiny float tensors from the CPU or from factories are also computed on the CPU:
`cpu_values` of their memory. So masks, lengths, GradScaler's scale and counters lead the program as
on a real card. Other values are stand-ins: what a healthy run would give.

An unknown condition must not lead a program in circles: `generate()` and rejection sampling loop
until a bool ends them. What a known side decides is known (`unknown & 0`). What libraries check is
healthy. A condition that one line reads again and again changes its value, and so does an index.
What the program has read of a mask is known from then on: what it computes from it agrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import PurePath
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.core.runtime.bytecode import chooses, healthy_answer
from nbmem.virtual.devices import CPU, is_virtual
from nbmem.virtual.frames import line_outside
from nbmem.virtual.tensors.assumptions import EQUALITIES, compared
from nbmem.virtual.tensors.host.recipes import View
from nbmem.virtual.tensors.operator_call import OperatorCall, facts_of
from nbmem.virtual.tensors.shapes import dense
from nbmem.virtual.tensors.stand_ins.numbers import stand_in, unknown, unread
from nbmem.virtual.tensors.stand_ins.value_signs import set_sign_and_seed
from nbmem.virtual.tensors.value_bounds import agreed, below_of, learn
from nbmem.virtual.warnings import LOOP, NO_END, VALUES

if TYPE_CHECKING:
    from nbmem.virtual.tensors.host.lazy_tensors import LazyTensors
    from nbmem.virtual.tensors.storages import CardMemory, Storages
    from nbmem.virtual.tensors.value_rules import Health, ValueRule

aten = torch.ops.aten
WHOLE_BYTES = 1 << 20
"""Integers and bools are followed up to this many bytes: the positions of 32 texts of 4,096 tokens,
from which transformers reads whether each row is one text and needs no mask."""
LARGE = 1 << 18
"""Elements from which a CPU copy is only written when it is read (tensors/host/lazy_tensors.py)."""
PATIENCE = 256
"""How often one line gets the same value of an unknown condition."""
GOING_ON = 1 << 12
"""How often one line gets a condition that is assumed true, or an index.

So often, too, one that no two numbers are equal: each token is compared with the end of a text."""
FLOATS = 16
"""Floats are followed up to this many elements: scales and averages, not activations."""
GENERATION = ("transformers", "generation")
"""Folder of the loops that ask of each token whether it ends a text."""
MADE_FLOATS = 1 << 14
"""Floats that a factory makes are followed up to this many elements: masks of ones, which
models test for gaps."""


def worth_following(tensor: torch.Tensor, *, made: bool = False) -> bool:
    """Return whether programs depend on values of this type and size."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.numel() <= (MADE_FLOATS if made else FLOATS)
    return tensor.numel() * tensor.element_size() <= WHOLE_BYTES


class Values:
    """The known values of tensors on the card."""

    def __init__(
        self,
        note: Callable[[str], None],
        storages: Storages,
        host: LazyTensors,
        rule_of: Callable[[Any], ValueRule],
    ) -> None:
        self._note = note
        self._rule_of = rule_of
        self.storages = storages
        self.host = host
        self._asked: Counter[tuple[tuple[CodeType, int], Any]] = Counter()

    def cpu_values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a CPU view of a tensor's values; None if they are unknown."""
        block = self.storages.of(tensor)
        cpu_values = None if block is None else block.cpu_values
        if cpu_values is None and tensor.numel():
            return None
        with _C._DisableTorchDispatch():
            empty = torch.empty(0, dtype=tensor.dtype, device=CPU)
            storage = empty.untyped_storage() if cpu_values is None else cpu_values
            view = empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
            view = view.conj() if tensor.is_conj() else view
            return torch._neg_view(view) if tensor.is_neg() else view

    def teach(self, tensor: torch.Tensor, value: torch.Tensor, *, made: bool = False) -> None:
        """Store the values of a fresh virtual tensor."""
        block = self.storages.of(tensor)
        if block is None or not worth_following(tensor, made=made) or tensor.storage_offset():
            return
        with _C._DisableTorchDispatch():
            cpu_values = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU
            )
            cpu_values.copy_(value)
        if cpu_values.untyped_storage().nbytes() == tensor.untyped_storage().nbytes():
            block.cpu_values = cpu_values.untyped_storage()

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget the values of a tensor's storage."""
        block = self.storages.of(tensor)
        if block is not None:
            block.forget_values()

    def follow(self, call: OperatorCall, fresh: list[torch.Tensor]) -> None:
        """Repeat a call on CPU values, or forget the values that it changed."""
        rule = self._rule_of(call.func)
        known = [(name, bound(self, call)) for name, bound in rule.bounds]
        sign_and_seed = None if rule.sign_rule is None else rule.sign_rule(self, call)
        assumed = None if rule.assumes is None else rule.assumes(self, call)
        self._follow(call, rule, fresh)
        made = (fresh or call.mutated()) if known or sign_and_seed or rule.assumes else []
        if assumed is not None and made and (block := self.storages.of(made[0])) is not None:
            block.assumed, block.by_equality = assumed, self._is_by_equality(call, rule)
        if sign_and_seed is not None:
            for tensor in fresh[:1] or made:
                set_sign_and_seed(self, tensor, sign_and_seed)
                self._set_drawn(tensor, call)
        for name, bound in known:
            if made and bound is not None:
                learn(self, name, made, bound)

    def _set_drawn(self, tensor: torch.Tensor, call: OperatorCall) -> None:
        """Store whether a random generator made the floats of a result."""
        block = self.storages.of(tensor)
        if block is not None:
            random = facts_of(call.func).random and call.func.overloadpacket != aten.bernoulli
            block.drawn = random and tensor.dtype.is_floating_point

    def _is_by_equality(self, call: OperatorCall, rule: ValueRule) -> bool:
        """Return whether the assumption on a result follows from an equality."""
        if rule.assumes is compared and call.func.overloadpacket in EQUALITIES:
            return True
        blocks = (self.storages.of(tensor) for tensor in call.tensors if is_virtual(tensor))
        return any(block is not None and block.by_equality for block in blocks)

    def _follow(self, call: OperatorCall, rule: ValueRule, fresh: list[torch.Tensor]) -> None:
        mutates = bool(facts_of(call.func).mutates)
        if rule.undefined:
            self._follow_pieces(fresh)
            return
        if not (mutates or fresh):
            return
        wanted = mutates or any(worth_following(t, made=rule.ignores_values(call)) for t in fresh)
        if wanted and self._follow_exactly(call, rule, fresh):
            return
        if (
            len(fresh) == 1
            and rule.absorbs is not None
            and self._absorbed(call, rule.absorbs, fresh[0])
        ):
            return
        if mutates and not rule.harmless:
            for tensor in call.mutated():
                if is_virtual(tensor):
                    self.forget(tensor)
        if len(fresh) == 1 and rule.health is not None:
            self._follow_health(call, rule.health, fresh[0])

    def _follow_pieces(self, fresh: list[torch.Tensor]) -> None:
        """Let undefined integers start as known zeros.

        Programs write such tensors later, often piece by piece.
        """
        for tensor in fresh:
            if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
                with _C._DisableTorchDispatch():
                    self.teach(tensor, torch.zeros((), dtype=tensor.dtype).expand(tensor.size()))

    def _follow_exactly(
        self, call: OperatorCall, rule: ValueRule, fresh: list[torch.Tensor]
    ) -> bool:
        if facts_of(call.func).random:
            return False
        if rule.overwrites and self._overwrite(call):
            return True
        on_cpu: dict[int, torch.Tensor] = {}
        for tensor in call.tensors:
            if is_virtual(tensor):
                cpu_values = _shape(tensor) if rule.by_geometry else self.cpu_values(tensor)
                if cpu_values is None:
                    return False
                on_cpu[id(tensor)] = cpu_values
        args, kwargs = call.map(lambda t: on_cpu.get(id(t), t))
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
                        self.teach(tensor, value, made=rule.ignores_values(call))
        return True

    def _absorbed(self, call: OperatorCall, absorbs: bool, result: torch.Tensor) -> bool:  # noqa: FBT001
        """Set a whole result that one argument decides, such as `x & 0`.

        Return whether there is such an argument. `unknown | True` is True, for whole tensors.
        """
        if result.dtype.is_floating_point or result.dtype.is_complex:
            return False
        if absorbs and result.dtype is not torch.bool:
            return False
        for tensor in call.tensors:
            cpu_values = self.cpu_values(tensor) if is_virtual(tensor) else tensor
            with _C._DisableTorchDispatch():
                if cpu_values is not None and bool((cpu_values == absorbs).all()):
                    value = torch.full((), absorbs, dtype=result.dtype, device=CPU)
                    self.teach(result, value.expand(result.size()))
                    return True
        return False

    def _overwrite(self, call: OperatorCall) -> bool:
        """Store a known value that fills a whole storage; return success."""
        target = call.args[0]
        if not is_virtual(target) or target.storage_offset():
            return False
        if target.numel() * target.element_size() != target.untyped_storage().nbytes():
            return False
        with _C._DisableTorchDispatch():
            if call.func is aten.copy_.default:
                source = call.args[1]
                value = self.cpu_values(source) if is_virtual(source) else source
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

    def _follow_health(self, call: OperatorCall, health: Health, result: torch.Tensor) -> None:
        """Set the health of a flag, and its value if that follows."""
        block = self.storages.of(result)
        flag = health(call, self._health(call))
        if block is None:
            return
        block.healthy = flag
        if flag is False or (flag and result.dtype is torch.bool):
            value = torch.full((), flag, dtype=result.dtype, device=CPU)
            self.teach(result, value.expand(result.size()))

    def _health(self, call: OperatorCall) -> bool | None:
        """Return the health that all arguments on the card share, or None."""
        flags = {self._flag(t) for t in call.tensors if is_virtual(t)}
        return flags.pop() if len(flags) == 1 else None

    def _flag(self, tensor: torch.Tensor) -> bool | None:
        """Return what all flags of a tensor are; None if mixed or unknown.

        Of numbers: False if all are zero.
        """
        cpu_values = self.cpu_values(tensor)
        if cpu_values is None:
            block = self.storages.of(tensor)
            return None if block is None else block.healthy
        with _C._DisableTorchDispatch():
            if not cpu_values.any():
                return False
            return True if cpu_values.dtype is torch.bool and cpu_values.all() else None

    def scalar(self, tensor: torch.Tensor) -> Any:
        """Return the answer to `.item()`."""
        cpu_values = self.cpu_values(tensor)
        if cpu_values is not None:
            with _C._DisableTorchDispatch():
                known = cpu_values.item()
            if self._asked and tensor.dtype is torch.bool:
                self._end_loop(known)
            return known
        self._note(VALUES)
        block = self.storages.of(tensor)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return unknown(tensor, block, tensor.dtype).item()
        answer = stand_in(tensor.dtype, block)
        if tensor.dtype is not torch.bool:
            return agreed(self, tensor, self._index_until_loops_end(tensor, answer))
        if block is None or block.healthy is not None:
            return answer
        return self._until_loops_end(
            answer, GOING_ON if block.assumed or block.by_equality else PATIENCE
        )

    def _until_loops_end(self, answer: bool, patience: int) -> bool:  # noqa: FBT001
        """Invert the answer to a condition after so many questions at a line.

        `while not done.all()` ends on a card; here it ends when the value changes.
        """
        place = line_outside()
        if PurePath(place[0].co_filename).parts[-3:-1] == GENERATION:
            self._note(NO_END)
        checked = healthy_answer(*place)
        if checked is not None:
            return checked
        asked = self._asked[place, answer] = self._asked[place, answer] + 1
        if asked % patience or chooses(*place):
            return answer
        self._note(LOOP)
        return not answer

    def _end_loop(self, known: bool) -> None:  # noqa: FBT001
        """Count a line's questions anew after a known answer that ends its loop.

        The texts that one line writes then do not add up.
        """
        self._asked.pop((line_outside(), not known), None)

    def _index_until_loops_end(self, tensor: torch.Tensor, answer: int) -> int:
        """Vary an index that one line reads again and again.

        `while token != end` ends on a card. The ends of a vocabulary are often its last words.
        """
        below = below_of(self, tensor)
        if below is None:
            return answer
        place = line_outside()
        asked = self._asked[place, None] = self._asked[place, None] + 1
        turns = asked - GOING_ON
        if turns < 0 or chooses(*place):
            return answer
        self._note(LOOP)
        turn, from_end = divmod(turns % below, 2)
        return below - 1 - turn if from_end else turn

    def on_cpu(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a copy on the CPU, with stand-ins for unknown values."""
        cpu_values = self.cpu_values(tensor)
        dtype = dtype or tensor.dtype
        if cpu_values is None:
            self._note(VALUES)
            block = self.storages.of(tensor)
            if tensor.numel() > LARGE and not (block and block.assumed):
                return self._unread(tensor, dtype)
            if tensor.dtype is torch.bool and block is not None:
                self._keep_read_mask(tensor, block)
            return unknown(tensor, block, dtype)
        with _C._DisableTorchDispatch():
            copy = torch.empty_strided(tensor.size(), dense(tensor), dtype=dtype, device=CPU)
            return copy.copy_(cpu_values)

    def _keep_read_mask(self, tensor: torch.Tensor, block: CardMemory) -> None:
        """Make a whole mask known as it is read, by one stand-in."""
        if (size := tensor.untyped_storage().nbytes()) <= WHOLE_BYTES:
            with _C._DisableTorchDispatch():
                flags = torch.full((size,), stand_in(torch.bool, block), device=CPU)
            block.cpu_values = flags.untyped_storage()

    def _unread(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Make a large CPU copy of untouched pages.

        Offloading takes no memory here until the copy is read.
        """
        view = View(dtype, tuple(tensor.size()), dense(tensor), 0)
        try:
            return self.host.zeros(view, unread(view, tensor, self.storages.of(tensor)))
        except MemoryError:  # More than this machine can reserve: one zero is expanded.
            with _C._DisableTorchDispatch():
                return torch.zeros((), dtype=dtype, device=CPU).expand(tensor.size())


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=tensor.dtype, device=CPU).expand(tensor.size())
